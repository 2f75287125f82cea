//! Programs that do not compile. The guide lists what the compiler says about them, and what to change.
//!
//! The programs are compiled by cargo, offline, with the versions of this workspace's lock file. Only the part of an
//! error that the guide quotes is compared, because other parts differ between compilers.

use std::collections::{BTreeSet, HashMap};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use self::mistakes::{MISTAKES, Mistake};
use crate::settings;

mod mistakes;

const GUIDE: &str = include_str!("../../../src/guide/compile_errors.md");

/// A program that does not compile.
struct Case {
    name: &'static str,
    program: &'static str,
    /// The parts of the compiler's message that lead to the change.
    says: &'static [&'static str],
    /// What the guide quotes of these parts.
    quote: &'static str,
    /// The change with which the program compiles: a part of the program, and what replaces it.
    change: [&'static str; 2],
}

const CASES: [Case; 3] = [
    Case {
        name: "option_layer",
        program: include_str!("option_layer.rs"),
        says: &["expected `Response<ResponseBody<Body>>`, found `Response<Body>`"],
        quote: "expected `Response<ResponseBody<Body>>`, found `Response<Body>`",
        change: ["per_ip(quota)", "per_ip(quota).axum_body()"],
    },
    Case {
        name: "boxed",
        program: include_str!("boxed.rs"),
        says: &[
            "expected `BoxCloneSyncServiceLayer<",
            "found struct `BoxCloneSyncServiceLayer<",
            "Response<ResponseBody<_>>, _>`",
        ],
        quote: "found struct `BoxCloneSyncServiceLayer<.., Response<ResponseBody<_>>, _>`",
        change: ["per_ip(quota)", "per_ip(quota).axum_body()"],
    },
    Case {
        name: "flag",
        program: include_str!("flag.rs"),
        says: &["expected `Response<Body>`, found `Response<ResponseBody<Body, "],
        quote: "expected `Response<Body>`, found `Response<ResponseBody<Body, ..>>`",
        change: ["option_layer(is_limited.then_some(limit))", "layer(limit.enabled(is_limited))"],
    },
];

/// The calls that do not compile with an algorithm whose calls are in progress until they end. Only a build says so.
const CALLS: [(&str, &str); 9] = [
    ("Concurrency::per_key(1)", r#"drop(limiter.check("user"))"#),
    ("Concurrency::per_key(1)", r#"drop(limiter.check_n("user", 2))"#),
    ("Concurrency::per_key(1)", r#"drop(limiter.acquire("user"))"#),
    ("Concurrency::per_key(1)", r#"drop(limiter.acquire_n("user", 2))"#),
    ("Concurrency::per_key(1)", r#"drop(limiter.call("user").check())"#),
    ("Concurrency::per_key(1)", r#"drop(limiter.call("user").acquire())"#),
    ("(bucket, Concurrency::per_key(1))", r#"drop(limiter.check("user"))"#),
    ("(Concurrency::per_key(1), bucket).block_for(MINUTE).after(3)", r#"drop(limiter.acquire("user"))"#),
    ("Tiered::new(Concurrency::per_key(1))", r#"drop(limiter.call("user").check())"#),
];

/// The calls that compile.
const IN_PROGRESS: &str = r#"drop((limiter.peek("user"), limiter.peek_n("user", 2), limiter.call("user").peek()));
    limiter.charge("user", 2);
    drop((limiter.call("user").reserve(), limiter.call("user").permit(), limiter.try_acquire_permit("user")));
    drop((limiter.acquire_permit("user"), limiter.call("user").acquire_permit()))"#;

#[test]
#[ignore = "compiles packages of its own: .ci/nightly runs it"]
fn a_call_that_nothing_ends_does_not_compile() {
    let program = |(algorithm, call): (&str, &str)| {
        format!(
            "#![allow(unused)]\nuse std::time::Duration;\nuse tower_throttle::algorithm::*;\n\
             use tower_throttle::{{Quota, RateLimiter}};\n\n\
             const MINUTE: Duration = Duration::from_secs(60);\n\n\
             fn main() {{\n    let bucket = TokenBucket::new(Quota::per_minute(1));\n    \
             let limiter = RateLimiter::new({algorithm});\n    {call};\n}}\n"
        )
    };
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("in_progress");
    let programs = folder.join("src/bin");
    let _ = fs::remove_dir_all(&programs);
    fs::create_dir_all(&programs).unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let manifest = format!(
        "[package]\nname = \"in-progress\"\nedition = \"2024\"\n\n[dependencies]\n\
         tower-throttle = {{ path = {root:?}, default-features = false }}\n\n[workspace]\n"
    );
    fs::write(folder.join("Cargo.toml"), manifest).unwrap();
    fs::copy(root.join("Cargo.lock"), folder.join("Cargo.lock")).unwrap();
    for (number, call) in CALLS.into_iter().enumerate() {
        fs::write(programs.join(format!("call_{number}.rs")), program(call)).unwrap();
        let changed = (call.0, IN_PROGRESS);
        fs::write(programs.join(format!("changed_{number}.rs")), program(changed)).unwrap();
    }
    let cargo = |command: &str| {
        let output = Command::new(env::var_os("CARGO").unwrap())
            .args([command, "--offline", "--quiet", "--bins", "--keep-going", "--message-format=json"])
            .args(["--target-dir", "target"])
            .current_dir(&folder)
            .output()
            .unwrap();
        (errors(&output), String::from_utf8(output.stdout).unwrap())
    };
    assert_eq!(cargo("check").0, HashMap::new(), "the docs say that only a build finds the mistake");
    let (mut errors, text) = cargo("build");
    for (number, call) in CALLS.into_iter().enumerate() {
        let error = errors.remove(&format!("call_{number}")).unwrap_or_else(|| panic!("{call:?} compiles"));
        // The line is in the error, or in a message that follows it.
        let line = format!("src/bin/call_{number}.rs:11:");
        assert!(error.contains("take a permit") && text.contains(&line), "{call:?}: {error}");
    }
    assert_eq!(errors, HashMap::new(), "permits compile");
    assert!(GUIDE.contains("nothing would end this call in progress: take a permit"));
}

/// Returns the errors of each program.
fn errors(output: &Output) -> HashMap<String, String> {
    let mut errors = HashMap::<_, String>::new();
    for (name, message) in messages(output) {
        *errors.entry(name).or_default() += message["rendered"].as_str().unwrap();
    }
    errors
}

/// Returns the name of the program and the message of each error.
fn messages(output: &Output) -> impl Iterator<Item = (String, Value)> {
    let lines = str::from_utf8(&output.stdout).unwrap().lines();
    lines.map(|line| serde_json::from_str::<Value>(line).unwrap()).filter_map(|mut line| {
        let is_error = line["reason"] == "compiler-message" && line["message"]["level"] == "error";
        is_error.then(|| (line["target"]["name"].as_str().unwrap().to_owned(), line["message"].take()))
    })
}

/// Creates a package with each program as it is, and as it is after the change.
fn package(folder: &Path) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let programs = folder.join("src/bin");
    // An earlier version of this test may have left other programs.
    let _ = fs::remove_dir_all(&programs);
    fs::create_dir_all(&programs).unwrap();
    let manifest = format!(
        r#"[package]
name = "compile-errors"
edition = "2024"

[dependencies]
axum = "0.8"
tokio = {{ version = "1", features = ["net"] }}
tower = {{ version = "0.5", features = ["util"] }}
tower-http = {{ version = "0.7", features = ["trace"] }}
tower-throttle = {{ path = {root:?} }}

[workspace]
"#
    );
    fs::write(folder.join("Cargo.toml"), manifest).unwrap();
    fs::copy(root.join("Cargo.lock"), folder.join("Cargo.lock")).unwrap();
    for Case { name, program, change: [from, to], .. } in CASES {
        assert_eq!(program.matches(from).count(), 1, "{name}");
        fs::write(programs.join(format!("{name}.rs")), program).unwrap();
        fs::write(programs.join(format!("{name}_changed.rs")), program.replace(from, to)).unwrap();
    }
    for Mistake { name, body, change: [from, to], .. } in MISTAKES {
        assert_eq!(body.matches(from).count(), 1, "{name}");
        fs::write(programs.join(format!("{name}.rs")), Mistake::program(body)).unwrap();
        let changed = Mistake::program(&body.replace(from, to));
        fs::write(programs.join(format!("{name}_changed.rs")), changed).unwrap();
    }
    fs::write(programs.join("settings.rs"), settings::program().0).unwrap();
}

/// What the compiler says about a pair of methods that must not compile.
const LOSES_A_SETTING: [&str; 3] = [
    "no method named `",
    "the responder of this layer cannot be set any more",
    "is no layer whose policies can be joined",
];

/// Returns the line of a message outside of macros.
fn line(message: &Value) -> usize {
    let mut spans = message["spans"].as_array().unwrap().iter();
    let mut span = spans.find(|span| span["is_primary"] == true).unwrap();
    while span["expansion"].is_object() {
        span = &span["expansion"]["span"];
    }
    span["line_start"].as_u64().unwrap() as usize
}

#[test]
#[ignore = "compiles packages of its own: .ci/nightly runs it"]
fn the_guide_says_how_to_change_programs_that_do_not_compile() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("compile_errors");
    package(&folder);
    let output = Command::new(env::var_os("CARGO").unwrap())
        .args(["check", "--offline", "--quiet", "--bins", "--keep-going", "--message-format=json"])
        .args(["--target-dir", "target"])
        .current_dir(&folder)
        .output()
        .unwrap();
    let mut errors = errors(&output);
    let mut pairs = BTreeSet::new();
    for (_, message) in messages(&output).filter(|(name, _)| name == "settings") {
        if !message["code"].is_null() {
            let rendered = message["rendered"].as_str().unwrap();
            assert!(LOSES_A_SETTING.iter().any(|text| rendered.contains(text)), "{rendered}");
            pairs.insert(line(&message));
        }
    }
    for Case { name, says, quote, .. } in CASES {
        let error = errors.remove(name).unwrap_or_else(|| {
            panic!("{name} compiles, or cargo failed: {}", String::from_utf8_lossy(&output.stderr))
        });
        for part in says {
            assert!(error.contains(part), "{name}: {part} in {error}");
        }
        assert!(GUIDE.contains(quote), "{name}: the guide does not quote the compiler");
    }
    for Mistake { name, says, in_guide, .. } in MISTAKES {
        let error = errors.remove(name).unwrap_or_else(|| panic!("{name} compiles"));
        for part in says {
            assert!(error.contains(part), "{name}: {part} in {error}");
            assert!(!in_guide || GUIDE.contains(part), "{name}: the guide does not quote the compiler");
        }
    }
    assert!(errors.remove("settings").is_some());
    let must_not_compile = settings::program().1;
    let compiles: Vec<_> = must_not_compile.iter().filter(|(line, _)| !pairs.contains(line)).collect();
    assert!(compiles.is_empty(), "one of two settings may be lost: {compiles:?}");
    assert_eq!(pairs.len(), must_not_compile.len(), "only these lines have errors");
    assert_eq!(errors, HashMap::new(), "after the change, no program has an error");
}
