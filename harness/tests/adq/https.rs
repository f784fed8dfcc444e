//! Endpoints behind TLS, with a certificate of an authority that nobody knows.

use crate::endpoints::{reply, says};
use crate::place::{Place, row};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::Value;
use std::net::TcpListener;
use std::sync::Arc;

/// A server with a certificate for 127.0.0.1, and the PEM of the authority that vouches for it.
fn server() -> (String, String) {
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority_key = KeyPair::generate().unwrap();
    let pem = authority.self_signed(&authority_key).unwrap().pem();
    let key = KeyPair::generate().unwrap();
    let issuer = Issuer::from_params(&authority, &authority_key);
    let own = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
    let config = Arc::new(config.with_no_client_auth().with_single_cert(vec![own.der().clone()], key).unwrap());
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let connection = ServerConnection::new(config.clone()).unwrap();
            let stream = StreamOwned::new(connection, stream.unwrap());
            // A client that does not trust it breaks off.
            std::thread::spawn(move || reply(stream, 200, &says("I shall do it.").to_string()));
        }
    });
    (url, pem)
}

fn run(place: &Place, url: &str, more: &[&str]) -> (i32, Value) {
    let tokenizer = place.path("fixtures/models/tiny-moe");
    let arguments = ["adq", "run", "--endpoint", url, "--model", "m", "--task", "ledger", "--controls", "none"];
    place.ask(&[&arguments[..], &["--tasks-only", "--tokenizer", tokenizer.to_str().unwrap()], more].concat())
}

#[test]
fn a_server_is_trusted_through_its_authority_alone() {
    let place = Place::new();
    let (url, pem) = server();
    let file = |name: &str, text: &str| {
        let path = place.path(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (own, other) = (file("own.pem", &pem), file("other.pem", &server().1));
    // The model talks and does nothing: an answer came.
    let (code, answer) = run(&place, &url, &["--ca-file", &own]);
    assert_eq!((code, &answer["tasks"][0]["verdict"]), (1, &"FAIL".into()), "{answer}");
    for more in [&[][..], &["--ca-file", &other]] {
        let (code, answer) = run(&place, &url, more);
        assert_eq!((code, row(&answer, "productive_tasks").0), (3, "INCOMPLETE"), "{answer}");
        assert!(answer["tasks"][0]["reason"].as_str().unwrap().contains("certificate"), "{answer}");
    }
}

#[test]
fn a_file_without_certificates_is_an_input_error() {
    let place = Place::new();
    let empty = place.path("empty.pem");
    std::fs::write(&empty, "no certificate\n").unwrap();
    let run = |url: &str| {
        let file = empty.to_str().unwrap();
        let run =
            place.run(&["adq", "run", "--endpoint", url, "--model", "m", "--controls", "none", "--ca-file", file]);
        (run.status.code(), String::from_utf8_lossy(&run.stderr).into_owned())
    };
    let (code, said) = run("https://127.0.0.1:9");
    assert!(code == Some(2) && said.contains("holds no certificate"), "{said}");
    let (code, said) = run("http://127.0.0.1:9");
    assert!(code == Some(2) && said.contains("begins with https://"), "{said}");
}
