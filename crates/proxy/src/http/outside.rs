//! Where requests go that are sent to an address outside the mesh.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use leno_model::{Egress, Reason};
use leno_traffic::Way;

use super::request::{Aim, Request};
use super::route::{Bound, Destination};
use crate::session::Session;
use crate::upstream::{Application, Speaks};

/// Where a request goes that its client sends to an address outside: there, if a policy names its host,
/// or lets out whatever goes to that address.
pub(crate) fn route(
    session: &Session,
    at: SocketAddr,
    (request, aim): (&Request<'_>, &Aim<'_>),
) -> Result<Bound, Reason> {
    let scene = session.worker.world.scene().ok_or(Reason::DiscoveryTimeout)?;
    let plans = &scene.plans;
    if plans.snapshot.plan.egress == Egress::Deny
        && plans.outlets.way(at) != Way::Open
        && plans.outlets.by_request(at, &request.view(aim)).is_none()
    {
        return Err(Reason::EgressDenied);
    }
    let there = session.outside.get_or_init(|| Rc::new(Application::new(at, Speaks::Http1)));
    Ok(Bound::to(Arc::clone(&scene), Destination::Application(Rc::clone(there))))
}
