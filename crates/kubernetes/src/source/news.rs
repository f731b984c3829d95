//! What the stream of one kind tells.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Namespace, Pod, Service as ServedService};
use kube::ResourceExt as _;
use kube::core::{ApiResource, DynamicObject};
use leno_model::{Admission, Service};
use leno_registry::{Rejected, ServedKind, Warning};

use super::record::Record;
use crate::read::{
    Custom, Member, NamespaceAdmission, ServiceReading, custom, member, namespace, service,
};

/// What the stream of one kind tells.
pub(crate) enum News {
    /// All objects follow, then [`News::Complete`].
    Begin,
    /// An object is there, so.
    Seen(Box<Seen>),
    /// An object is gone.
    Gone(Id),
    /// Objects that were not seen since [`News::Begin`] are gone.
    Complete,
    /// The server does not have the kind.
    Absent,
    /// The server forbids to read it, in these words.
    Forbidden(String),
    /// The server cannot be asked at the moment.
    Failing(String),
}

/// Which object of a kind.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Id {
    /// Empty for kinds without.
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// One object, read.
pub(crate) struct Seen {
    pub(crate) id: Id,
    /// `None` when it is nothing to the mesh.
    pub(crate) item: Option<Item>,
    /// What its status needs, if it has one that is written.
    pub(crate) record: Option<Record>,
}

/// What an object is to the mesh.
pub(crate) enum Item {
    Pod(Result<Member, Box<Rejected>>),
    Service(Result<(Service, Vec<Warning>), Rejected>),
    Namespace(NamespaceAdmission),
    Custom(Custom),
}

impl Id {
    pub(crate) fn of(object: &impl kube::ResourceExt) -> Self {
        Self { namespace: object.namespace().unwrap_or_default(), name: object.name_any() }
    }
}

impl Seen {
    pub(crate) fn pod(pod: Pod) -> Self {
        let item = member(&pod).transpose().map(Item::Pod);
        Self { id: Id::of(&pod), item, record: None }
    }

    pub(crate) fn service(served: ServedService) -> Self {
        let item = match service(&served) {
            ServiceReading::Ours(service, warnings) => Some(Item::Service(Ok((service, warnings)))),
            ServiceReading::Refused(refused) => Some(Item::Service(Err(refused))),
            ServiceReading::Foreign(why) => {
                let (namespace, name) = (served.namespace(), served.name_any());
                tracing::debug!(namespace, name, why, "a service is none of the mesh");
                None
            }
        };
        Self { id: Id::of(&served), item, record: None }
    }

    pub(crate) fn namespace(object: Namespace) -> Self {
        let admission = namespace(&object);
        let item = (admission != Ok(Admission::default())).then_some(Item::Namespace(admission));
        Self { id: Id::of(&object), item, record: None }
    }

    pub(crate) fn custom(
        kind: ServedKind,
        resource: &Arc<ApiResource>,
        object: DynamicObject,
    ) -> Self {
        let (id, record) = (Id::of(&object), Record::of(kind, resource, &object));
        let item = custom(kind, &resource.api_version, object).map(Item::Custom);
        // Nothing to the mesh, and nothing of ours stands there.
        let record = record.filter(|record| item.is_some() || record.is_ours());
        Self { id, item, record }
    }
}
