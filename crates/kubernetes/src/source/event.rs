//! Converts watch events of the API server into the events that the object store applies: each object is
//! reduced to the data that the mesh, gateways and statuses need.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, Secret, Service as KubeService};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::ResourceExt as _;
use kube::core::{ApiResource, DynamicObject, PartialObjectMeta};
use leno_model::{Service, Workload};
use leno_registry::{RejectedDocument, ServedKind, Warning};

use super::status_record::StatusRecord;
use crate::gateway::{self, GATEWAY_KINDS, GatewayInput};
use crate::read::{
    AdmissionReading, CustomResource, FOREIGN_CONFIG_KINDS, ForeignMeshSettings, MeshPod,
    NamespaceReading, ServiceReading, ZONE_LABEL, ZonePreference, endpoint_addresses,
    incomplete_grant, pod_addresses, read_custom, read_endpoints, read_namespace, read_pod,
    read_service, read_zone_preference, service_addresses,
};

/// A watch event of one kind, with the object already converted.
pub(crate) enum WatchEvent {
    /// A list begins: all objects follow, then [`WatchEvent::ListComplete`].
    ListStarted,
    /// An object was added or changed.
    Applied(Box<ConvertedObject>),
    /// An object was deleted.
    Deleted(ObjectId),
    /// The list is complete: objects that were not received since [`WatchEvent::ListStarted`] are deleted.
    ListComplete,
    /// All existing Secrets of this set, to which gateways refer, have been received.
    SecretsReceived(Arc<BTreeSet<ObjectId>>),
    /// The server does not serve the kind.
    KindNotServed,
    /// The server forbids reading the kind, with this message.
    Forbidden(String),
    /// The server is currently unavailable.
    Unavailable(String),
}

/// The identity of an object within its kind.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ObjectId {
    /// Empty for cluster-scoped kinds.
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// A converted object.
pub(crate) struct ConvertedObject {
    pub(crate) id: ObjectId,
    /// The object for the mesh; `None` if it does not concern the mesh.
    pub(crate) item: Option<MeshItem>,
    /// The object for gateways; `None` if it does not concern gateways.
    pub(crate) gateway_input: Option<GatewayInput>,
    /// The data for the status and events of the object; `None` if neither is written for it.
    pub(crate) record: Option<StatusRecord>,
}

/// An object for the mesh.
pub(crate) enum MeshItem {
    Pod(Result<MeshPod, Box<RejectedDocument>>),
    Service(Result<SelectorService, RejectedDocument>),
    /// A service without a selector.
    SelectorlessService(Service),
    /// The endpoints of an EndpointSlice.
    Endpoints(Vec<Workload>),
    Namespace(NamespaceReading),
    Custom(CustomResource),
    /// The settings of another mesh.
    ForeignSettings(ForeignMeshSettings),
    /// Addresses of the API server.
    ApiServer(BTreeSet<SocketAddr>),
    /// The zone of a node; `None` if the node has no zone label.
    Node(Option<String>),
}

/// A Service with a selector, and its settings for the mesh.
pub(crate) struct SelectorService {
    pub(crate) service: Service,
    pub(crate) warnings: Vec<Warning>,
    /// The zone preference of the service, if any.
    pub(crate) zone_preference: Option<ZonePreference>,
}

impl ObjectId {
    pub(crate) fn from_object(object: &impl kube::ResourceExt) -> Self {
        Self { namespace: object.namespace().unwrap_or_default(), name: object.name_any() }
    }
}

impl ConvertedObject {
    pub(crate) fn from_pod(pod: Pod) -> Self {
        let item = read_pod(&pod).transpose().map(MeshItem::Pod);
        let gateway_input = Some(pod_addresses(&pod))
            .filter(|addresses| !addresses.is_empty())
            .map(GatewayInput::Pod);
        let needs_record = match &item {
            Some(MeshItem::Pod(Ok(mesh_pod))) => {
                mesh_pod.admission != AdmissionReading::NONE
                    || !mesh_pod.warnings.is_empty()
                    || mesh_pod.sidecar_settings.may_be_overridden()
            }
            Some(MeshItem::Pod(Err(_))) => true,
            _ => false,
        };
        let record = needs_record.then(|| StatusRecord::from_builtin(&pod));
        Self { id: ObjectId::from_object(&pod), item, gateway_input, record }
    }

    pub(crate) fn from_service(kube_service: KubeService) -> Self {
        let item = match read_service(&kube_service) {
            ServiceReading::WithSelector(service, mut warnings) => {
                let (zone_preference, warning) = read_zone_preference(&kube_service);
                warnings.extend(warning);
                Some(MeshItem::Service(Ok(SelectorService { service, warnings, zone_preference })))
            }
            ServiceReading::Selectorless(service, _) => {
                Some(MeshItem::SelectorlessService(service))
            }
            ServiceReading::Rejected(rejected) => Some(MeshItem::Service(Err(rejected))),
            ServiceReading::NotInMesh(cause) => {
                let (namespace, name) = (kube_service.namespace(), kube_service.name_any());
                tracing::debug!(namespace, name, reason = cause, "Service is not part of the mesh");
                None
            }
        };
        let needs_record = match &item {
            Some(MeshItem::Service(Ok(service))) => !service.warnings.is_empty(),
            Some(MeshItem::Service(Err(_))) => true,
            _ => false,
        };
        let record = needs_record.then(|| StatusRecord::from_builtin(&kube_service));
        Self { id: ObjectId::from_object(&kube_service), item, gateway_input: None, record }
    }

    /// Converts a node into its zone.
    pub(crate) fn from_node(node: PartialObjectMeta<Node>) -> Self {
        let zone = node.metadata.labels.as_ref().and_then(|labels| labels.get(ZONE_LABEL).cloned());
        let item = Some(MeshItem::Node(zone));
        Self { id: ObjectId::from_object(&node), item, gateway_input: None, record: None }
    }

    /// Converts the Service of the API server.
    pub(crate) fn from_api_server_service(service: KubeService) -> Self {
        let item = Some(MeshItem::ApiServer(service_addresses(&service)));
        Self { id: ObjectId::from_object(&service), item, gateway_input: None, record: None }
    }

    /// Converts the endpoints of the API server.
    pub(crate) fn from_api_server_endpoints(slice: EndpointSlice) -> Self {
        let item = Some(MeshItem::ApiServer(endpoint_addresses(&slice)));
        Self { id: ObjectId::from_object(&slice), item, gateway_input: None, record: None }
    }

    pub(crate) fn from_slice(slice: EndpointSlice) -> Self {
        let item = Some(MeshItem::Endpoints(read_endpoints(&slice)));
        Self { id: ObjectId::from_object(&slice), item, gateway_input: None, record: None }
    }

    /// Converts a Secret if a gateway refers to it; other Secrets are ignored.
    pub(crate) fn from_secret(secret: Secret, referenced_secrets: &BTreeSet<ObjectId>) -> Self {
        let id = ObjectId::from_object(&secret);
        let gateway_input =
            referenced_secrets.contains(&id).then(|| gateway::read_certificate(&secret));
        Self { id, item: None, gateway_input, record: None }
    }

    pub(crate) fn from_deployment(deployment: Deployment) -> Self {
        let gateway_input = Some(gateway::read_deployment(&deployment));
        Self { id: ObjectId::from_object(&deployment), item: None, gateway_input, record: None }
    }

    /// Converts the Service of a gateway.
    pub(crate) fn from_gateway_service(service: KubeService) -> Self {
        let gateway_input = Some(gateway::read_service(&service));
        Self { id: ObjectId::from_object(&service), item: None, gateway_input, record: None }
    }

    pub(crate) fn from_namespace(object: Namespace) -> Self {
        let reading = read_namespace(&object);
        let needs_record = reading.admission != AdmissionReading::NONE
            || !reading.warnings.is_empty()
            || reading.sidecar_settings.may_be_overridden();
        let record = needs_record.then(|| StatusRecord::from_builtin(&object));
        let has_settings = needs_record || reading.sidecar_settings.has_injection;
        let item = has_settings.then_some(MeshItem::Namespace(reading));
        let gateway_input =
            Some(GatewayInput::Namespace(object.metadata.labels.clone().unwrap_or_default()));
        Self { id: ObjectId::from_object(&object), item, gateway_input, record }
    }

    pub(crate) fn from_custom(
        kind: ServedKind,
        resource: &Arc<ApiResource>,
        object: DynamicObject,
    ) -> Self {
        let (id, record) =
            (ObjectId::from_object(&object), StatusRecord::from_custom(kind, resource, &object));
        let rejected_grant = incomplete_grant(kind, &object).map(MeshItem::Custom);
        let gateway_input = gateway::read_gateway_input(kind, &resource.api_version, &object);
        let gateway_input = gateway_input.filter(|_| rejected_grant.is_none());
        let item = if rejected_grant.is_some() {
            rejected_grant
        } else if GATEWAY_KINDS.contains(&kind) {
            None
        } else if FOREIGN_CONFIG_KINDS.contains(&kind) {
            ForeignMeshSettings::read(&object).map(MeshItem::ForeignSettings)
        } else {
            read_custom(kind, &resource.api_version, object).map(MeshItem::Custom)
        };
        // No record for objects that do not concern the mesh and have no status by this mesh.
        let is_relevant = item.is_some() || gateway_input.is_some();
        let record = record.filter(|record| is_relevant || record.has_own_entry());
        Self { id, item, gateway_input, record }
    }
}
