//! The rules of the house: where arrows between crates and files may point, and how large things may become.
//!
//! `exceptions.txt` lists what does not keep to them yet. The list may only shrink: an exception that nothing needs fails
//! the test, too.

#![allow(clippy::unwrap_used)]

mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use source::{Arrows, Modules, circles};

const LINES_OF_A_FUNCTION: usize = 80;
const FIELDS_OF_A_STRUCT: usize = 25;
const LINES_OF_A_FILE: usize = 799;
const COLUMNS_OF_DOCS: usize = 120;

/// The crates, each with those that it may use: only ones before it.
const CRATES: &[(&str, &[&str])] = &[
    ("protocol", &[]),
    ("parity", &["protocol"]),
    ("pmi", &[]),
    ("wire", &["protocol"]),
    ("trace", &["wire"]),
    ("preload", &[]),
    ("ft", &["protocol", "parity", "wire", "preload"]),
    ("pmpi", &["wire", "preload"]),
    ("image", &["wire"]),
    ("store", &["wire"]),
    ("sim", &["protocol", "wire"]),
    ("fabric", &["protocol", "wire", "image"]),
    (
        "runtime",
        &["protocol", "parity", "pmi", "wire", "trace", "image", "store"],
    ),
    ("cli", &["protocol", "wire", "trace", "image", "store", "runtime"]),
];

/// Modules of the runtime that do not know others: a process of its own each.
const STRANGERS: &[(&str, &[&str])] = &[
    ("event_logger", &["agent", "dispatcher"]),
    ("channel_memory", &["agent", "dispatcher"]),
    ("dispatcher", &["agent"]),
    ("agent", &["dispatcher"]),
];

/// Something that does not keep to a rule.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Fault {
    rule: &'static str,
    /// Where it is: a file, and what in it; for a circle, all its files, from where the crate's root is.
    place: String,
    size: usize,
}

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every file below a directory of the tree, by its path from the top.
fn files_below(directory: &str, suffix: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut next = vec![PathBuf::from(directory)];
    while let Some(directory) = next.pop() {
        for entry in std::fs::read_dir(top().join(&directory)).unwrap() {
            let entry = entry.unwrap();
            let path = directory.join(entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                next.push(path);
            } else if path.to_string_lossy().ends_with(suffix) {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

fn read(path: &Path) -> Option<String> {
    std::fs::read_to_string(top().join(path)).ok()
}

/// The crates of ours that a `Cargo.toml` asks for.
fn used_crates(manifest: &str) -> BTreeSet<&str> {
    let names = manifest.lines().filter_map(|line| line.strip_prefix("resurgo-"));
    names.filter_map(|rest| rest.split(['.', ' ', '=']).next()).collect()
}

fn crate_faults(name: &str, manifest: &str) -> Vec<Fault> {
    let allowed = CRATES
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, allowed)| *allowed);
    let wrong = used_crates(manifest)
        .into_iter()
        .filter(|used| !allowed.unwrap_or_default().contains(used));
    wrong
        .map(|used| Fault {
            rule: "crate",
            place: format!("{name} -> {used}"),
            size: 1,
        })
        .collect()
}

/// Arrows from a module to one that it is a stranger to.
fn arrow_faults(arrows: &Arrows, source: &str) -> Vec<Fault> {
    let is_in = |file: &Path, module: &str| {
        let below = file.strip_prefix(source).unwrap_or(file);
        below.starts_with(module) || below == Path::new(&format!("{module}.rs"))
    };
    let mut faults = Vec::new();
    for (module, others) in STRANGERS {
        for (from, targets) in arrows.iter().filter(|(from, _)| is_in(from, module)) {
            for to in targets.iter().filter(|to| others.iter().any(|other| is_in(to, other))) {
                let place = format!("{} -> {}", from.display(), to.display());
                faults.push(Fault {
                    rule: "arrow",
                    place,
                    size: 1,
                });
            }
        }
    }
    faults
}

/// What is too large in a crate, and its circles.
fn module_faults(modules: &Modules) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (rule, sized, limit) in [
        ("function", &modules.functions, LINES_OF_A_FUNCTION),
        ("struct", &modules.structs, FIELDS_OF_A_STRUCT),
    ] {
        for found in sized.iter().filter(|found| found.size > limit) {
            let place = format!("{} {}", found.file.display(), found.name);
            faults.push(Fault {
                rule,
                place,
                size: found.size,
            });
        }
    }
    let root = modules.directory();
    for circle in circles(&modules.arrows()) {
        let names = circle
            .iter()
            .map(|file| file.strip_prefix(root).unwrap_or(file).display().to_string());
        let names: Vec<String> = names.collect();
        faults.push(Fault {
            rule: "circle",
            place: format!("{}: {}", root.display(), names.join(" ")),
            size: circle.len(),
        });
    }
    faults
}

/// Lines of Markdown that are too long. A row of a table cannot be broken.
fn long_lines(text: &str) -> usize {
    let is_long = |line: &&str| line.chars().count() > COLUMNS_OF_DOCS && !line.starts_with('|');
    text.lines().filter(is_long).count()
}

/// Everything in the tree that does not keep to the rules.
fn faults() -> Vec<Fault> {
    let mut faults = Vec::new();
    let mut seen = BTreeSet::new();
    for (name, _) in CRATES {
        let manifest = read(Path::new(&format!("crates/{name}/Cargo.toml"))).unwrap();
        faults.extend(crate_faults(name, &manifest));
        for root in ["src/lib.rs", "src/main.rs", "build.rs", "restorer/main.rs"] {
            let root = PathBuf::from(format!("crates/{name}/{root}"));
            if read(&root).is_none() {
                continue;
            }
            let modules = Modules::of(&root, &read);
            seen.extend(modules.files().into_iter().map(Path::to_owned));
            faults.extend(module_faults(&modules));
            if *name == "runtime" {
                faults.extend(arrow_faults(&modules.arrows(), "crates/runtime/src"));
            }
        }
    }
    let directories = std::fs::read_dir(top().join("crates")).unwrap();
    assert_eq!(
        directories.count(),
        CRATES.len(),
        "a crate is missing in the table of crates"
    );
    for file in files_below("crates", ".rs") {
        let lines = read(&file).unwrap().lines().count();
        if lines > LINES_OF_A_FILE {
            faults.push(Fault {
                rule: "file",
                place: file.display().to_string(),
                size: lines,
            });
        }
        let is_test = file.components().any(|part| {
            ["tests", "tests.rs", "fuzz.rs"]
                .iter()
                .any(|name| part.as_os_str() == *name)
        });
        assert!(
            is_test || seen.contains(&file),
            "{} belongs to no module",
            file.display()
        );
    }
    let mut pages = files_below("docs", ".md");
    pages.extend(["README.md", "CHANGELOG.md"].map(PathBuf::from));
    for page in pages {
        let lines = long_lines(&read(&page).unwrap());
        if lines > 0 {
            faults.push(Fault {
                rule: "columns",
                place: page.display().to_string(),
                size: lines,
            });
        }
    }
    faults
}

/// Compares what was found with the list of exceptions: what is beyond the list, and what the list has too much of. A line
/// of it is `RULE SIZE PLACE`; a reason may follow `#`.
fn compare(found: &[Fault], exceptions: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut allowed: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for line in exceptions.lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        let mut words = line.splitn(3, ' ');
        match (words.next(), words.next().map(str::parse), words.next()) {
            (Some(rule), Some(Ok(size)), Some(place)) => _ = allowed.insert((rule, place), size),
            _ if line.is_empty() => {}
            _ => wrong.push(format!("not an exception: {line}")),
        }
    }
    for Fault { rule, place, size } in found {
        match allowed.remove(&(*rule, place.as_str())) {
            None => wrong.push(format!("against the rules: {rule} {size} {place}")),
            Some(known) if known < *size => wrong.push(format!("more than {known} now: {rule} {size} {place}")),
            Some(_) => {}
        }
    }
    let unneeded = allowed.into_iter();
    wrong.extend(unneeded.map(|((rule, place), size)| format!("take out of the exceptions: {rule} {size} {place}")));
    wrong
}

#[test]
fn the_tree_keeps_to_the_rules() {
    let wrong = compare(&faults(), include_str!("exceptions.txt"));
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
}

/// The modules of a small crate, whose files are given.
fn small(files: &[(&str, &str)]) -> Modules {
    let read = |path: &Path| {
        let found = files.iter().find(|(name, _)| Path::new("src").join(name) == path);
        found.map(|(_, text)| text.to_string())
    };
    Modules::of(Path::new("src/lib.rs"), &read)
}

fn arrows_of(files: &[(&str, &str)]) -> Vec<String> {
    let modules = small(files);
    let arrows = modules.arrows();
    let flat = arrows
        .iter()
        .flat_map(|(from, targets)| targets.iter().map(move |to| (from, to)));
    flat.map(|(from, to)| format!("{} -> {}", from.display(), to.display()))
        .collect()
}

#[test]
fn arrows_are_found_however_they_are_written() {
    let of = |text| {
        arrows_of(&[
            ("lib.rs", "mod a;\nmod b;"),
            ("a.rs", text),
            ("b.rs", "pub struct B; mod c { pub fn d() {} }"),
        ])
    };
    for text in [
        "use crate::b::B;",
        "use super::b::{self, B};",
        "use crate::b; fn f() { b::f() }",
        "fn f(b: crate::b::B) {}",
        "fn f() { println!(\"{}\", crate::b::f()); }",
        "fn f() { use crate::b::*; }",
        "mod inside { use super::super::b::c::d as e; }",
        "impl X { fn f() { super::b::c::d(); } }",
    ] {
        assert_eq!(of(text), ["src/a.rs -> src/b.rs"], "{text}");
    }
    for text in [
        "use crate::b;",
        "mod b { } use self::b::B;",
        "// crate::b::B",
        "fn f(b: std::b::B) {}",
        "fn f() { let b = a; b.f(); }",
    ] {
        assert!(of(text).is_empty(), "{text}");
    }
    assert!(of("#[cfg(test)] mod tests { use crate::b::B; }").is_empty());
}

#[test]
fn a_re_export_leads_to_what_it_shows() {
    let files = [
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "use crate::b::C;"),
        ("b.rs", "mod c; pub use c::C;"),
        ("b/c.rs", "pub struct C;"),
    ];
    assert_eq!(arrows_of(&files), ["src/a.rs -> src/b/c.rs"]);
}

#[test]
fn a_wrong_arrow_is_found() {
    let files = [
        ("lib.rs", "mod agent; mod dispatcher; mod event_logger;"),
        ("agent.rs", "mod node;"),
        ("agent/node.rs", "pub fn f() {}"),
        ("dispatcher.rs", "use crate::event_logger::X;"),
        ("event_logger.rs", "use crate::agent::node::f;"),
    ];
    let modules = small(&files);
    let faults = arrow_faults(&modules.arrows(), "src");
    let places: Vec<_> = faults.iter().map(|fault| fault.place.as_str()).collect();
    assert_eq!(places, ["src/event_logger.rs -> src/agent/node.rs"]);
    let faults = crate_faults(
        "wire",
        "[dependencies]\nresurgo-protocol.workspace = true\nresurgo-image = { workspace = true }",
    );
    assert_eq!(
        faults,
        [Fault {
            rule: "crate",
            place: "wire -> image".to_string(),
            size: 1
        }]
    );
}

#[test]
fn what_is_too_large_is_found() {
    let lines = |lines: usize| format!("fn f() {{\n{}}}\n", "g();\n".repeat(lines - 2));
    let found = |text: &str| {
        let faults = module_faults(&small(&[("lib.rs", text)]));
        faults
            .into_iter()
            .map(|fault| format!("{} {} {}", fault.rule, fault.size, fault.place))
            .collect::<Vec<_>>()
    };
    assert!(found(&lines(80)).is_empty());
    assert_eq!(found(&lines(81)), ["function 81 src/lib.rs f"]);
    assert_eq!(
        found(&format!("/// Two.\nimpl<T> A for B<T> {{\n#[inline]\n{}}}", lines(90))),
        ["function 90 src/lib.rs B::f"]
    );
    assert!(found(&format!("#[test]\n{}", lines(81))).is_empty());
    assert!(found(&format!("#[cfg(test)]\nmod tests {{\n{}}}", lines(81))).is_empty());
    let fields = |fields: usize| {
        format!(
            "struct S {{ {} }}",
            (0..fields).map(|number| format!("f{number}: u8,")).collect::<String>()
        )
    };
    assert!(found(&fields(25)).is_empty());
    assert_eq!(found(&fields(26)), ["struct 26 src/lib.rs S"]);
    let row = format!("| {} |", "x".repeat(200));
    assert_eq!(
        long_lines(&format!("{row}\n{}\n{}\n", "x".repeat(121), "ü".repeat(120))),
        1
    );
}

#[test]
fn a_circle_is_found() {
    let files = [
        ("lib.rs", "mod a; mod b; mod c; mod d;"),
        ("a.rs", "use crate::b::B;"),
        ("b.rs", "use crate::c::C;"),
        ("c.rs", "use crate::a::A; use crate::d::D;"),
        ("d.rs", "pub struct D;"),
    ];
    let faults = module_faults(&small(&files));
    assert_eq!(
        faults,
        [Fault {
            rule: "circle",
            place: "src: a.rs b.rs c.rs".to_string(),
            size: 3
        }]
    );
}

#[test]
fn exceptions_may_only_shrink() {
    let found = [Fault {
        rule: "function",
        place: "a.rs f".to_string(),
        size: 90,
    }];
    assert!(compare(&found, "# long ones\n\nfunction 90 a.rs f # it is a table\n").is_empty());
    assert!(compare(&found, "function 95 a.rs f").is_empty());
    assert_eq!(compare(&found, ""), ["against the rules: function 90 a.rs f"]);
    assert_eq!(
        compare(&found, "function 89 a.rs f"),
        ["more than 89 now: function 90 a.rs f"]
    );
    assert_eq!(
        compare(&[], "function 90 a.rs f"),
        ["take out of the exceptions: function 90 a.rs f"]
    );
    assert_eq!(compare(&[], "function a.rs f"), ["not an exception: function a.rs f"]);
}
