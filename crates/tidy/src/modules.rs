//! Which module of a crate uses what another one defines.
//!
//! A module is a file. It depends on another one of its crate if a path in it (`crate::`, `super::`, `self::`, the name of a module below it,
//! or what a `use` brings in) leads to something that the other one defines. Re-exports are followed to the definition:
//! `pub use` of a parent is no dependency of it. Methods are not seen, only names of items.

use crate::sources::{items, product_files, root};
use std::collections::{BTreeMap, BTreeSet};
use syn::visit::Visit;

/// A module's path below its crate: empty for the crate itself.
pub type ModulePath = Vec<String>;

/// A module as far as dependencies go.
#[derive(Default)]
struct Module {
    /// Names that `use` brings in, and what they stand for. Those of a `pub use` are re-exports.
    imports: BTreeMap<String, Import>,
    /// Paths of glob imports.
    globs: Vec<Vec<String>>,
    /// All other paths in its code.
    paths: BTreeSet<Vec<String>>,
}

/// What a `use` names.
#[derive(Clone)]
struct Import {
    path: Vec<String>,
    is_public: bool,
}

/// The modules of a crate.
pub struct Modules {
    modules: BTreeMap<ModulePath, Module>,
}

impl Modules {
    /// Reads a crate's product code.
    pub fn of_crate(name: &str) -> Self {
        let source = root().join("crates").join(name).join("src");
        let mut modules = BTreeMap::new();
        for path in product_files(name) {
            let below = path.strip_prefix(&source).unwrap_or(&path).with_extension("");
            let mut module: ModulePath =
                below.iter().map(|part| part.to_string_lossy().into_owned()).collect();
            if module.last().is_some_and(|last| ["mod", "lib", "main"].contains(&last.as_str())) {
                module.pop();
            }
            let mut reader = Reader::default();
            items(&path).iter().for_each(|item| reader.visit_item(item));
            modules.insert(module, reader.module);
        }
        Self { modules }
    }

    /// The number of modules.
    pub fn count(&self) -> usize {
        self.modules.len()
    }

    /// Which modules each module depends on.
    pub fn dependencies(&self) -> BTreeMap<ModulePath, BTreeSet<ModulePath>> {
        let of_module = |(name, module): (&ModulePath, &Module)| {
            let private =
                module.imports.values().filter(|import| !import.is_public).map(|import| &import.path);
            let paths = private.chain(&module.globs).chain(&module.paths);
            let mut used: BTreeSet<ModulePath> =
                paths.filter_map(|path| self.definer(name, path, 0)).collect();
            used.remove(name);
            (name.clone(), used)
        };
        self.modules.iter().map(of_module).collect()
    }

    /// The module that defines what a path in module `from` names; `None` if that is outside of the crate.
    fn definer(&self, from: &ModulePath, path: &[String], depth: usize) -> Option<ModulePath> {
        const DEEPEST: usize = 16;
        let mut at = from.clone();
        let mut rest = path;
        let mut is_anchored = false;
        while let Some((first, others)) = rest.split_first() {
            match first.as_str() {
                "crate" => at.clear(),
                "self" => {}
                "super" => {
                    at.pop();
                }
                _ => break,
            }
            is_anchored = true;
            rest = others;
        }
        while let Some((first, others)) = rest.split_first() {
            let mut below = at.clone();
            below.push(first.clone());
            if self.modules.contains_key(&below) {
                at = below;
                is_anchored = true;
                rest = others;
                continue;
            }
            let import = self.modules.get(&at).and_then(|module| module.imports.get(first));
            return match import {
                Some(import) if depth < DEEPEST && import.path != path => {
                    let whole: Vec<String> = import.path.iter().chain(others).cloned().collect();
                    self.definer(&at, &whole, depth + 1)
                }
                _ if is_anchored => Some(at),
                _ => None,
            };
        }
        is_anchored.then_some(at)
    }

    /// Sets of modules that depend on each other, each in order; none if there is no circle.
    pub fn circles(&self) -> Vec<Vec<ModulePath>> {
        let dependencies = self.dependencies();
        let reached: BTreeMap<&ModulePath, BTreeSet<&ModulePath>> =
            dependencies.keys().map(|from| (from, reachable(&dependencies, from))).collect();
        let mut circles: BTreeSet<Vec<ModulePath>> = BTreeSet::new();
        for (from, to) in &reached {
            if to.contains(from) {
                let mutual = to.iter().filter(|other| reached[*other].contains(from));
                circles.insert(mutual.map(|&module| module.clone()).collect());
            }
        }
        circles.into_iter().collect()
    }
}

/// All modules that one depends on, by way of others too; itself only if it is on a circle.
fn reachable<'a>(
    dependencies: &'a BTreeMap<ModulePath, BTreeSet<ModulePath>>,
    from: &ModulePath,
) -> BTreeSet<&'a ModulePath> {
    let mut found = BTreeSet::new();
    let mut open: Vec<&ModulePath> = dependencies[from].iter().collect();
    while let Some(module) = open.pop() {
        if found.insert(module) {
            open.extend(dependencies.get(module).into_iter().flatten());
        }
    }
    found
}

/// Collects a file's imports and paths.
#[derive(Default)]
struct Reader {
    module: Module,
}

impl Reader {
    fn tree(&mut self, prefix: &[String], tree: &syn::UseTree, is_public: bool) {
        let with = |name: &syn::Ident| {
            let mut path = prefix.to_vec();
            path.push(name.to_string());
            path
        };
        match tree {
            syn::UseTree::Path(path) => self.tree(&with(&path.ident), &path.tree, is_public),
            syn::UseTree::Name(name) if name.ident == "self" => {
                let last = prefix.last().cloned().unwrap_or_default();
                self.import(last, prefix.to_vec(), is_public);
            }
            syn::UseTree::Name(name) => self.import(name.ident.to_string(), with(&name.ident), is_public),
            syn::UseTree::Rename(name) if name.ident == "self" => {
                self.import(name.rename.to_string(), prefix.to_vec(), is_public);
            }
            syn::UseTree::Rename(name) => {
                self.import(name.rename.to_string(), with(&name.ident), is_public);
            }
            syn::UseTree::Glob(_) => self.module.globs.push(prefix.to_vec()),
            syn::UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.tree(prefix, tree, is_public));
            }
        }
    }

    fn import(&mut self, name: String, path: Vec<String>, is_public: bool) {
        self.module.imports.insert(name, Import { path, is_public });
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let is_public = !matches!(item.vis, syn::Visibility::Inherited);
        self.tree(&[], &item.tree, is_public);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() && path.segments.len() > 1 {
            let names = path.segments.iter().map(|segment| segment.ident.to_string());
            self.module.paths.insert(names.collect());
        }
        syn::visit::visit_path(self, path);
    }
}
