//! Who wants a certificate for a guest, and whether that may be. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use leno_model::{GuestId, Name, SecretName, Sponsor, TrustDomain, below, check_subject};

use crate::words::CONTROL;

/// A certificate that is wanted in a Secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestWish {
    pub(crate) owner: Owner,
    /// Where it is to be kept, and whose it is by that.
    pub(crate) id: GuestId,
    /// What the guest is called.
    pub(crate) names: Vec<Name>,
    /// How long it is to live, if that is said.
    pub(crate) lifetime: Option<Duration>,
    /// When the object was made that wants it, in seconds.
    pub(crate) created: i64,
}

/// The object that wants a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) api_version: String,
    pub(crate) kind: &'static str,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
}

/// `Kind namespace/name`.
impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
    }
}

impl GuestWish {
    /// The settings of a mesh are for all of it to obey; anybody else speaks for a namespace.
    pub(crate) fn sponsor(&self) -> Sponsor<'_> {
        match self.owner.kind {
            ACCESS_CERT => Sponsor::Namespace(&self.id.secret.namespace),
            _ => Sponsor::Mesh,
        }
    }

    fn order(&self) -> (i64, &str, &str) {
        (self.created, &self.owner.namespace, &self.owner.name)
    }

    /// The fields, as the object has them.
    fn field(&self, of_cert: &str) -> String {
        match self.owner.kind {
            ACCESS_CERT => format!("spec.{of_cert}"),
            _ => format!("spec.certificate.ingressGateway.{of_cert}"),
        }
    }
}

/// What came of wishes, by the uid of the object that has it: why there is no certificate, if there is none.
pub type Outcomes = BTreeMap<String, Result<(), String>>;

/// Where a control plane may write Secrets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Grants {
    /// In these namespaces,
    pub namespaces: BTreeSet<Name>,
    /// and never in its own, which has the authority.
    pub own: Option<Name>,
}

/// What is to be done.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Judged {
    /// These certificates.
    pub(crate) wishes: Vec<GuestWish>,
    /// Nothing, and why, by the uid of the object.
    pub(crate) refused: BTreeMap<String, String>,
}

/// Judges what is wanted all together: the oldest of several that want the same has it, so that every control plane
/// gives it to the same one.
pub(crate) fn judge(
    mut all: Vec<GuestWish>,
    grants: &Grants,
    trust_domain: &TrustDomain,
) -> Judged {
    all.sort_by(|one, two| one.order().cmp(&two.order()));
    let mut taken = Taken::default();
    let mut judged = Judged::default();
    for wish in all {
        let refusal = match judged.wishes.len() {
            GUESTS_MAX => {
                Some(format!("spec: there are {GUESTS_MAX} of them already; remove some"))
            }
            _ => refusal(&wish, grants, trust_domain).or_else(|| taken.refusal(&wish)),
        };
        match refusal {
            Some(why) => drop(judged.refused.insert(wish.owner.uid, why)),
            None => {
                taken.put(&wish, trust_domain);
                judged.wishes.push(wish);
            }
        }
    }
    judged
}

/// Why a certificate cannot be, whoever else wants one.
fn refusal(wish: &GuestWish, grants: &Grants, trust_domain: &TrustDomain) -> Option<String> {
    let namespace = &wish.id.secret.namespace;
    if grants.own.as_ref() == Some(namespace) {
        let field = wish.field("secret.namespace");
        return Some(format!(
            "{field}: {namespace} is that of {CONTROL}, with the authority of the mesh; use another"
        ));
    }
    if !grants.namespaces.contains(namespace) {
        let field = wish.field("secret.namespace");
        return Some(format!(
            "{field}: the control plane may not write Secrets in {namespace}; install it with \
             `--access-certs {namespace}` beside the namespaces that it has (with Helm: `accessCerts`)"
        ));
    }
    wish.names.iter().enumerate().find_map(|(index, name)| {
        let why = check_subject(name, wish.sponsor(), trust_domain).err()?;
        let field = wish.field(&format!("subjectAltNames[{index}]"));
        Some(format!("{field}: `{name}` {why}; use a name that is not of the mesh"))
    })
}

/// What older objects have.
#[derive(Default)]
struct Taken {
    secrets: BTreeMap<SecretName, String>,
    /// The names that are nobody's by themselves, each with the namespace that has it.
    names: BTreeMap<Name, (Name, String)>,
}

impl Taken {
    fn put(&mut self, wish: &GuestWish, trust_domain: &TrustDomain) {
        self.secrets.insert(wish.id.secret.clone(), wish.owner.to_string());
        for name in &wish.names {
            // A name below the trust domain belongs to its namespace, and to whoever settles things for the mesh.
            if below(name, trust_domain).is_none() {
                let holder = (wish.id.secret.namespace.clone(), wish.owner.to_string());
                self.names.entry(name.clone()).or_insert(holder);
            }
        }
    }

    fn refusal(&self, wish: &GuestWish) -> Option<String> {
        let secret = &wish.id.secret;
        if let Some(other) = self.secrets.get(secret) {
            let field = wish.field("secret");
            return Some(format!(
                "{field}: {other} is older, and has {secret}; name another Secret"
            ));
        }
        wish.names.iter().enumerate().find_map(|(index, name)| {
            let (namespace, other) = self.names.get(name)?;
            let field = wish.field(&format!("subjectAltNames[{index}]"));
            (*namespace != secret.namespace).then(|| {
                format!("{field}: {other} is older, and {name} is its guest; use another name")
            })
        })
    }
}

pub(crate) const ACCESS_CERT: &str = "AccessCert";
/// Far more than meshes have clients outside: each costs a look at its Secret every minute.
const GUESTS_MAX: usize = 1000;

#[cfg(test)]
mod tests {
    use super::*;

    fn domain() -> TrustDomain {
        TrustDomain::new("cluster.local").unwrap()
    }

    fn grants() -> Grants {
        let name = |text| Name::new(text).unwrap();
        Grants {
            namespaces: [name("shop"), name("ingress"), name("leno-system")].into(),
            own: Some(name("leno-system")),
        }
    }

    fn wish(kind: &'static str, secret: &str, names: &[&str], created: i64) -> GuestWish {
        let secret: SecretName = secret.parse().unwrap();
        GuestWish {
            owner: Owner {
                api_version: "policy.flomesh.io/v1alpha1".to_owned(),
                kind,
                namespace: secret.namespace.to_string(),
                name: format!("{}-{created}", secret.name),
                uid: format!("u-{created}"),
            },
            id: GuestId { trust_domain: domain(), secret },
            names: names.iter().map(|name| Name::new(name).unwrap()).collect(),
            lifetime: None,
            created,
        }
    }

    /// What is refused, a line each; the others are wished for.
    fn refusals(wishes: Vec<GuestWish>) -> Vec<String> {
        let judged = judge(wishes.clone(), &grants(), &domain());
        assert_eq!(judged.wishes.len() + judged.refused.len(), wishes.len());
        judged.refused.into_values().collect()
    }

    #[test]
    fn only_namespaces_that_are_listed_get_secrets_and_never_that_of_the_authority() {
        assert_eq!(refusals(vec![wish(ACCESS_CERT, "shop/a", &["a.example"], 1)]), [""; 0]);
        for (secret, expected) in [
            ("other/a", "may not write Secrets in other; install it with `--access-certs other`"),
            ("leno-system/leno-authority", "with the authority of the mesh"),
        ] {
            let refused = refusals(vec![wish(ACCESS_CERT, secret, &["a.example"], 1)]);
            assert!(refused[0].contains(expected), "{refused:?}");
        }
    }

    #[test]
    fn a_namespace_names_its_own_accounts_and_the_settings_of_the_mesh_those_of_all() {
        let name = ["nginx.ingress.cluster.local"];
        assert_eq!(refusals(vec![wish(ACCESS_CERT, "ingress/a", &name, 1)]), [""; 0]);
        assert_eq!(refusals(vec![wish("MeshConfig", "shop/a", &name, 1)]), [""; 0]);
        let refused = refusals(vec![wish(ACCESS_CERT, "shop/a", &name, 1)]);
        assert_eq!(
            refused,
            [
                "spec.subjectAltNames[0]: `nginx.ingress.cluster.local` is the name of an account of \
              another namespace: here it ends in `.shop.cluster.local`; use a name that is not of \
              the mesh"
            ]
        );
    }

    #[test]
    fn the_oldest_has_a_secret_and_its_namespace_has_a_name() {
        let both = vec![
            wish(ACCESS_CERT, "shop/a", &["a.example"], 2),
            wish(ACCESS_CERT, "shop/a", &["b.example"], 1),
        ];
        assert_eq!(
            refusals(both),
            ["spec.secret: AccessCert shop/a-1 is older, and has shop/a; name another Secret"]
        );
        let both = vec![
            wish(ACCESS_CERT, "ingress/b", &["b.example", "a.example"], 2),
            wish(ACCESS_CERT, "shop/a", &["a.example"], 1),
            wish(ACCESS_CERT, "shop/c", &["a.example"], 3),
        ];
        assert_eq!(
            refusals(both),
            ["spec.subjectAltNames[1]: AccessCert shop/a-1 is older, and a.example is its guest; \
              use another name"]
        );
    }
}
