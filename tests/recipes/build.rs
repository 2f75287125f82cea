//! Writes the code of the recipes that only this package tests to a file each, so that what is tested is what the guide
//! shows.

use std::path::PathBuf;
use std::{env, fs};

const CHAPTER: &str = "../../src/guide/recipes.md";

/// The heading of each recipe, and the name of its file.
const RECIPES: [(&str, &str); 2] =
    [("GraphQL before the resolvers", "graphql.rs"), ("Serverless, behind an API gateway", "serverless.rs")];

fn main() {
    println!("cargo::rerun-if-changed={CHAPTER}");
    println!("cargo::rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let chapter = fs::read_to_string(CHAPTER).expect("the chapter exists");
    for (heading, file) in RECIPES {
        let code =
            code(&chapter, heading).unwrap_or_else(|| panic!("{CHAPTER} has no code below {heading:?}"));
        fs::write(out.join(file), code).expect("the folder exists");
    }
}

/// Returns the first block of Rust of a section.
fn code<'a>(chapter: &'a str, heading: &str) -> Option<&'a str> {
    let (_, section) = chapter.split_once(&format!("\n## {heading}\n"))?;
    let section = section.split("\n## ").next()?;
    let (_, block) = section.split_once("\n```rust\n")?;
    block.split("```").next()
}
