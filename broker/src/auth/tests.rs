//! Who gets in, and a table of attempts across tenants that all fail.

use tidegate_protocol::topic::TopicPattern;

use super::*;

fn principal(name: &str, tenant: &str, credential: Credential, allow: &[&str]) -> PrincipalConfig {
    PrincipalConfig {
        name: name.to_owned(),
        tenant: tenant.to_owned(),
        role: String::new(),
        credential,
        allow: allow.iter().map(|text| Allow::parse(text).expect("valid")).collect(),
    }
}

fn two_tenants() -> Auth {
    Auth::new(Config {
        principals: Some(vec![
            principal("app", "red", Credential::Token(hash(b"red-token")), &["produce:orders/>", "fetch:orders/*"]),
            principal("ops", "red", Credential::Token(hash(b"red-ops")), &["topics:>", "admin"]),
            principal("app", "blue", Credential::Token(hash(b"blue-token")), &["produce:>", "fetch:>", "topics:>"]),
            principal("device", "blue", Credential::Certificate(hash(b"blue-der")), &["produce:>"]),
        ]),
        admin_token: hash(b"admin"),
    })
}

#[test]
fn everyone_is_who_they_are() {
    let auth = two_tenants();
    let app = auth.identify(&Claim { tenant: "red", token: "red-token", ..Claim::default() }).expect("known");
    assert_eq!((&*app.name, &*app.tenant, app.admin), ("app", "red", false));
    assert!(app.may(Verb::Produce, "orders/eu/created"));
    assert!(app.may(Verb::Fetch, "orders/eu"));
    assert!(!app.may(Verb::Fetch, "orders/eu/created"));
    assert!(!app.may(Verb::Topics, "orders/eu"));
    let device =
        auth.identify(&Claim { tenant: "blue", certificate: Some(b"blue-der"), ..Claim::default() }).expect("known");
    assert_eq!(&*device.name, "device");
    assert_eq!(auth.tenants().into_iter().collect::<Vec<_>>(), ["blue", "red"]);
}

#[test]
fn admin_needs_the_token_and_the_right() {
    let auth = two_tenants();
    let with = |token| auth.identify(&Claim { tenant: "red", token, admin_token: "admin", ..Claim::default() });
    assert!(with("red-ops").expect("known").admin);
    assert!(!with("red-token").expect("known").admin, "the admin token alone does not make an admin");
    let without = auth.identify(&Claim { tenant: "red", token: "red-ops", ..Claim::default() });
    assert!(!without.expect("known").admin, "the right alone does not make an admin");
}

#[test]
fn attempts_across_tenants_all_fail() {
    let auth = two_tenants();
    let none = Claim::default();
    let attempts = [
        ("no credential", Claim { tenant: "red", ..none }),
        ("no credential on loopback", Claim { tenant: "red", loopback: true, ..none }),
        ("no tenant, on loopback", Claim { loopback: true, ..none }),
        ("the default tenant with another's token", Claim { token: "red-token", ..none }),
        ("another tenant with an own token", Claim { tenant: "blue", token: "red-token", ..none }),
        ("the other way round", Claim { tenant: "red", token: "blue-token", ..none }),
        ("a tenant that does not exist", Claim { tenant: "green", token: "red-token", ..none }),
        ("a token that does not exist", Claim { tenant: "red", token: "guess", ..none }),
        (
            "the hash in place of the token",
            Claim { tenant: "red", token: "d2f6ca6c2d0ff7e60cd0c4b4cf8a1a0f4d0d2e1e40de1a3c4d1c6a0f5ae2ad3c", ..none },
        ),
        ("a certificate of another tenant", Claim { tenant: "red", certificate: Some(b"blue-der"), ..none }),
        ("a certificate nobody knows", Claim { tenant: "blue", certificate: Some(b"other"), ..none }),
        ("a token used as a certificate", Claim { tenant: "red", certificate: Some(b"red-token"), ..none }),
        ("a certificate used as a token", Claim { tenant: "blue", token: "blue-der", ..none }),
        (
            "a wrong token beside a right certificate",
            Claim { tenant: "blue", token: "guess", certificate: Some(b"blue-der"), ..none },
        ),
        ("the admin token alone", Claim { tenant: "red", admin_token: "admin", loopback: true, ..none }),
        ("a wrong admin token", Claim { tenant: "red", token: "red-ops", admin_token: "guess", ..none }),
        ("the tenant in other letters", Claim { tenant: "RED", token: "red-token", ..none }),
    ];
    for (what, claim) in attempts {
        assert_eq!(auth.identify(&claim), Err(Unknown), "{what}");
    }
}

#[test]
fn without_a_file_this_machine_may_everything_but_admin() {
    let auth = Auth::new(Config { principals: None, admin_token: hash(b"admin") });
    let local = auth.identify(&Claim { loopback: true, ..Claim::default() }).expect("local");
    assert!(!local.admin);
    assert!(local.may(Verb::Produce, "a/b") && local.may(Verb::Fetch, "a") && local.may(Verb::Topics, "a"));
    assert!(!local.may(Verb::Fetch, "$sys/topics"));
    assert!(local.may_some(Verb::Fetch, &TopicPattern::parse("a/*").expect("valid")));
    assert!(auth.identify(&Claim { loopback: true, admin_token: "admin", ..Claim::default() }).expect("local").admin);
    for claim in [
        Claim::default(),
        Claim { loopback: true, tenant: "red", ..Claim::default() },
        Claim { loopback: true, token: "x", ..Claim::default() },
        Claim { loopback: true, admin_token: "x", ..Claim::default() },
        Claim { admin_token: "admin", ..Claim::default() },
    ] {
        assert_eq!(auth.identify(&claim), Err(Unknown));
    }
}

#[test]
fn entries_that_say_nothing() {
    for (text, error) in [
        ("write:a", "unknown verb \"write\""),
        ("produce", "\"produce\" needs the topics it holds for, as in \"produce:orders/>\""),
        ("admin:>", "\"admin\" takes no topics"),
        ("fetch:$sys/topics", "pattern \"$sys/topics\": topics of the broker itself cannot be given away"),
    ] {
        assert_eq!(Allow::parse(text).expect_err("refused").to_string(), error);
    }
    assert!(matches!(Allow::parse("fetch:a//b"), Err(AllowError::Pattern(_))));
}
