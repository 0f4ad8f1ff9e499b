//! A file lies in the folder of its stage, and a folder depends on those before it only.

use std::path::Path;
use tidy::modules::Modules;
use tidy::sources::root;

/// Folders of a crate or module in the order in which they may depend on each other, and the files that lie beside them.
struct Rooms {
    /// The crate.
    name: &'static str,
    /// The module that has the folders, below the crate.
    within: &'static [&'static str],
    /// Folders: each depends on those before it only.
    folders: &'static [&'static str],
    /// Files beside the folders, without their extension.
    files: &'static [&'static str],
}

const ROOMS: [Rooms; 2] = [
    Rooms {
        name: "orchestrion",
        within: &[],
        folders: &["plan", "search", "run", "tune", "build", "tools"],
        files: &[
            "artifact",
            "compile",
            "consistency",
            "error",
            "lib",
            "manifest",
            "model",
            "options",
            "parallel",
            "stages",
            "testing",
            "updatable",
        ],
    },
    Rooms {
        name: "orch-runtime",
        within: &["cuda"],
        folders: &["driver", "compile", "vendor", "execute"],
        files: &["mod", "testing", "tests"],
    },
];

/// What lies directly in a folder: names of folders, and of Rust files without their extension.
fn entries(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned())).collect()
}

#[test]
fn files_lie_in_the_folders_of_their_stages() {
    for rooms in &ROOMS {
        let mut folder = root().join("crates").join(rooms.name).join("src");
        folder.extend(rooms.within);
        let found = entries(&folder);
        assert!(found.len() > rooms.folders.len(), "{} has no such folder", folder.display());
        for name in found {
            let is_known = rooms.folders.contains(&name.as_str()) || rooms.files.contains(&name.as_str());
            assert!(is_known, "{name} belongs to one of {:?} in {}", rooms.folders, folder.display());
        }
    }
}

#[test]
fn folders_depend_on_earlier_ones_only() {
    let mut problems = Vec::new();
    let mut arrows = 0;
    for rooms in &ROOMS {
        let rank = |module: &[String]| {
            let below = module.strip_prefix(
                rooms.within.iter().map(|part| (*part).to_owned()).collect::<Vec<_>>().as_slice(),
            )?;
            rooms.folders.iter().position(|folder| below.first().is_some_and(|first| first == folder))
        };
        for (from, used) in Modules::of_crate(rooms.name).dependencies() {
            for to in used {
                let (Some(lower), Some(upper)) = (rank(&to), rank(&from)) else { continue };
                arrows += usize::from(lower < upper);
                if lower > upper {
                    problems.push(format!("{}: {} uses {}", rooms.name, from.join("::"), to.join("::")));
                }
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    assert!(arrows > 20, "only {arrows} uses between folders were found");
}
