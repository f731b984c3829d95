//! What proxies want to know: services that they use, addresses that they ask for.

use std::net::IpAddr;

use leno_discovery::{ADDRESSES_MAX, ConnectionId};
use leno_model::ServiceName;

use super::Owner;

impl Owner {
    /// Subscribes, and answers: even without services, since the plan is an answer too.
    pub(super) fn subscribe(
        &mut self,
        connection: ConnectionId,
        (services, addresses): (Vec<ServiceName>, Vec<IpAddr>),
    ) {
        let Some(contact) = self.audience.contact(connection) else {
            return;
        };
        for service in services {
            if contact.subscriptions.len() >= self.limits.subscriptions {
                tracing::warn!(workload = %contact.workload, "it uses too many services");
                break;
            }
            contact.subscriptions.insert(service);
        }
        for address in addresses {
            if contact.addresses.len() >= ADDRESSES_MAX {
                tracing::warn!(workload = %contact.workload, "it asks for too many addresses");
                break;
            }
            contact.addresses.insert(address);
        }
        let settling = self.start.settling();
        self.audience.answer(connection, &self.mesh, settling);
    }

    pub(super) fn unsubscribe(
        &mut self,
        connection: ConnectionId,
        (services, addresses): (&[ServiceName], &[IpAddr]),
    ) {
        let Some(contact) = self.audience.contact(connection) else {
            return;
        };
        for service in services {
            contact.subscriptions.remove(service);
        }
        for address in addresses {
            contact.addresses.remove(address);
        }
        let settling = self.start.settling();
        self.audience.answer(connection, &self.mesh, settling);
    }
}
