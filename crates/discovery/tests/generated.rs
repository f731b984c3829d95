//! Test that the committed `src/proto.rs` matches `discovery.proto`.

use std::path::Path;

/// `UPDATE_EXPECT=1 cargo test -p leno-discovery --test generated` regenerates the file.
#[test]
fn generated_code_is_up_to_date() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../proto");
    let files = protox::compile([root.join("leno/discovery/v1/discovery.proto")], [&root]).unwrap();
    let module = prost_build::Module::from_protobuf_package_name("leno.discovery.v1");
    let requests = files.file.into_iter().map(|file| (module.clone(), file)).collect();
    let generated = prost_build::Config::new()
        .bytes([".leno.discovery.v1.Upsert.content"])
        .disable_comments(["."])
        // These contain secrets.
        .skip_debug([".leno.discovery.v1.JoinRequest", ".leno.discovery.v1.GatewayCertificate"])
        .generate(requests)
        .unwrap()
        .remove(&module)
        .unwrap();
    expect_test::expect_file!["../src/proto.rs"].assert_eq(&format!("{CAPTION}{generated}"));
}

const CAPTION: &str = "\
//! Generated from `proto/leno/discovery/v1/discovery.proto`; not written by hand.
#![allow(
    clippy::all,
    clippy::pedantic,
    unnameable_types,
    unreachable_pub,
    unused_qualifications,
    missing_docs,
    reason = \"generated\"
)]

";
