//! Writes the chapters of the guide as they are tested: with the code of `<chapter>/<n>.rs` around the n-th block of
//! Rust of a chapter, in place of the line `// the block`. A block without such a file compiles alone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{env, fs};

const CHAPTERS: [&str; 2] = ["../../src/guide", "../../redis/src/guide"];

/// The code before and after a block.
type Wrapper = (String, String);

fn main() {
    println!("cargo::rerun-if-changed=.");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    let mut wrappers = wrappers();
    for folder in CHAPTERS {
        println!("cargo::rerun-if-changed={folder}");
        for chapter in files(folder.as_ref(), "md") {
            let name = stem(&chapter);
            let (tested, blocks) = wrap(&name, &read(&chapter), &mut wrappers);
            let listed = include_str!("lib.rs")
                .lines()
                .any(|line| line.trim().split([':', ';']).next() == Some(&name));
            assert!(listed || blocks == 0, "tests/guide/lib.rs does not list the chapter {name}");
            fs::write(out.join(format!("{name}.md")), tested).expect("the folder exists");
        }
    }
    let left: Vec<_> = wrappers.keys().collect();
    assert!(left.is_empty(), "no chapter has these blocks: {left:?} in tests/guide");
}

/// Returns all wrappers, by chapter and number.
fn wrappers() -> BTreeMap<(String, usize), Wrapper> {
    let mut wrappers = BTreeMap::new();
    let folders =
        fs::read_dir(".").expect("cargo runs this in the package").map(|entry| entry.unwrap().path());
    for folder in folders.filter(|path| path.is_dir()) {
        for file in files(&folder, "rs") {
            let number = stem(&file).parse().unwrap_or_else(|_| panic!("{} is no number", file.display()));
            let text = read(&file);
            let parts: Vec<_> = text.split("// the block\n").collect();
            let [before, after] = parts[..] else { panic!("{} has no single block", file.display()) };
            wrappers.insert((stem(&folder), number), (before.trim_end_matches(' ').into(), after.into()));
        }
    }
    wrappers
}

/// Puts wrappers around the blocks of a chapter, and removes them from `wrappers`. Returns the text, and the number of
/// its blocks.
fn wrap(chapter: &str, text: &str, wrappers: &mut BTreeMap<(String, usize), Wrapper>) -> (String, usize) {
    let (mut tested, mut blocks) = (String::new(), 0);
    // in a block, the code after it
    let mut end: Option<String> = None;
    for line in text.lines() {
        match (line.trim_start().strip_prefix("```"), end.take()) {
            (Some(language), None) => {
                let mut wrapper = Wrapper::default();
                // rustdoc takes code without a language for Rust
                if matches!(language.split(',').next(), Some("rust" | "")) {
                    blocks += 1;
                    wrapper = wrappers.remove(&(chapter.to_owned(), blocks)).unwrap_or_default();
                }
                tested += &format!("{line}\n{}", wrapper.0);
                end = Some(wrapper.1);
            }
            (Some(_), Some(after)) => tested += &format!("{after}{line}\n"),
            (None, inside) => {
                tested += &format!("{line}\n");
                end = inside;
            }
        }
    }
    (tested, blocks)
}

fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|is| is == extension)).collect()
}

fn stem(path: &Path) -> String {
    path.file_stem().and_then(|stem| stem.to_str()).expect("a name in UTF-8").to_owned()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
