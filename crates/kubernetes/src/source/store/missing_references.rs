//! Finds references to missing objects in objects of kinds without a status. An event reports the first one.

use leno_model::{Object, ObjectKey, RouteGroupName, TargetRule};

use super::ObjectStore;

impl ObjectStore {
    /// Returns the field and the problem of the first missing reference of a valid object; `None` if all referenced
    /// objects exist.
    pub(super) fn missing_reference(&self, object: &Object) -> Option<String> {
        let missing_reference = match object {
            Object::TrafficSplit(split) => {
                let backends = split.backends.iter().enumerate();
                let backends = backends.map(|(index, backend)| {
                    (format!("spec.backends[{index}].service"), &backend.service)
                });
                let root = ("spec.service".to_owned(), &split.root.service);
                let mut services = [root].into_iter().chain(backends);
                let missing_service = services.find_map(|(field, service)| {
                    Some((field, self.missing_target(service, None)?))
                });
                let groups = split.groups.iter().flatten();
                missing_service.or_else(|| self.missing_group("spec.matches", groups))
            }
            Object::TrafficTarget(target) => {
                target.rules.iter().enumerate().find_map(|(index, rule)| match rule {
                    TargetRule::Http { group, .. } => {
                        self.missing_group(&format!("spec.rules[{index}].name"), [group])
                    }
                    TargetRule::Tcp { route } => {
                        let key = ObjectKey::TcpRoute(route.clone());
                        let is_missing = self.custom_resources.get(&key).is_none();
                        let field = format!("spec.rules[{index}].name");
                        is_missing.then(|| (field, format!("there is no TCPRoute {route}")))
                    }
                })
            }
            _ => None,
        };
        missing_reference.map(|(field, problem)| format!("{field}: {problem}"))
    }

    /// Returns `field` and the problem if one of the groups does not exist.
    fn missing_group<'a>(
        &self,
        field: &str,
        groups: impl IntoIterator<Item = &'a RouteGroupName>,
    ) -> Option<(String, String)> {
        let is_missing = |group: &&RouteGroupName| {
            self.custom_resources.get(&ObjectKey::HttpRouteGroup((*group).clone())).is_none()
        };
        let group = groups.into_iter().find(is_missing)?;
        Some((field.to_owned(), format!("there is no HTTPRouteGroup {group}")))
    }
}
