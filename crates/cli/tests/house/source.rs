//! Rust sources as the rules see them: modules with their files, the arrows between files, and the sizes of functions
//! and structs. Code for tests (`#[cfg(test)]`) is left out.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// Reads a file of the tree by its path.
pub type Read<'a> = &'a dyn Fn(&Path) -> Option<String>;

/// From each file, the files that its code names something of.
pub type Arrows<'a> = BTreeMap<&'a Path, BTreeSet<&'a Path>>;

/// A function or a struct, and its lines or fields.
#[derive(Debug, PartialEq)]
pub struct Sized {
    pub file: PathBuf,
    pub name: String,
    pub size: usize,
}

/// One module, which may be a part of a file.
struct Module {
    file: PathBuf,
    parent: Option<usize>,
    children: BTreeMap<String, usize>,
    /// Names that `use` gives to paths.
    names: BTreeMap<String, Vec<String>>,
    /// Paths in its code, `use` items that are no re-exports among them.
    paths: BTreeSet<Vec<String>>,
}

/// A crate's modules, found from its root.
#[derive(Default)]
pub struct Modules {
    all: Vec<Module>,
    pub functions: Vec<Sized>,
    pub structs: Vec<Sized>,
}

impl Modules {
    /// All modules below the root file of a crate.
    pub fn of(root: &Path, read: Read) -> Self {
        let mut modules = Self::default();
        let directory = root.parent().unwrap_or(Path::new("")).to_owned();
        modules.add_file(root.to_owned(), directory, None, read);
        modules
    }

    /// Where the crate's root file is.
    pub fn directory(&self) -> &Path {
        self.all[0].file.parent().unwrap_or(Path::new(""))
    }

    pub fn files(&self) -> BTreeSet<&Path> {
        self.all.iter().map(|module| module.file.as_path()).collect()
    }

    pub fn arrows(&self) -> Arrows<'_> {
        let mut arrows: Arrows = BTreeMap::new();
        for (number, module) in self.all.iter().enumerate() {
            let targets = arrows.entry(&module.file).or_default();
            for path in &module.paths {
                if let Some((to, true)) = self.resolve(number, path, 0)
                    && self.all[to].file != module.file
                {
                    targets.insert(&self.all[to].file);
                }
            }
        }
        arrows
    }

    /// The module that a path leads to, and whether it goes on to something inside. Nothing for paths to elsewhere.
    fn resolve(&self, from: usize, path: &[String], depth: usize) -> Option<(usize, bool)> {
        if depth > 20 {
            return None;
        }
        let mut at = from;
        let mut rest = path;
        while let [first, more @ ..] = rest {
            at = match first.as_str() {
                "crate" => 0,
                "self" => at,
                "super" => self.all[at].parent?,
                _ => break,
            };
            rest = more;
        }
        let is_local = rest.len() < path.len();
        let mut is_first = true;
        while let [name, more @ ..] = rest {
            if let Some(child) = self.all[at].children.get(name) {
                at = *child;
            } else if let Some(target) = self.all[at].names.get(name).filter(|target| target.as_slice() != path) {
                let (to, is_inside) = self.resolve(at, target, depth + 1)?;
                if is_inside {
                    return Some((to, true));
                }
                at = to;
            } else if is_first && !is_local {
                return None;
            } else {
                return Some((at, true));
            }
            is_first = false;
            rest = more;
        }
        Some((at, false))
    }

    fn add_file(&mut self, file: PathBuf, directory: PathBuf, parent: Option<usize>, read: Read) -> usize {
        let text = read(&file).unwrap_or_else(|| panic!("{} cannot be read", file.display()));
        let parsed = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        self.add_items(file, directory, parent, &parsed.items, read)
    }

    /// Adds a module. `directory`: where the files of its child modules are.
    fn add_items(
        &mut self,
        file: PathBuf,
        directory: PathBuf,
        parent: Option<usize>,
        items: &[syn::Item],
        read: Read,
    ) -> usize {
        let number = self.all.len();
        self.all.push(Module {
            file: file.clone(),
            parent,
            children: BTreeMap::new(),
            names: BTreeMap::new(),
            paths: BTreeSet::new(),
        });
        let mut seen = Seen::default();
        for item in items.iter().filter(|item| !is_for_tests(attributes(item))) {
            let syn::Item::Mod(module) = item else {
                seen.visit_item(item);
                continue;
            };
            let name = module.ident.to_string();
            let inside = directory.join(&name);
            let child = match &module.content {
                Some((_, items)) => self.add_items(file.clone(), inside, Some(number), items, read),
                // A file of another crate, which has its own rules.
                None if module.attrs.iter().any(|attribute| attribute.path().is_ident("path")) => continue,
                None => {
                    let flat = directory.join(format!("{name}.rs"));
                    let file = if read(&flat).is_some() {
                        flat
                    } else {
                        inside.join("mod.rs")
                    };
                    self.add_file(file, inside, Some(number), read)
                }
            };
            self.all[number].children.insert(name, child);
        }
        let sized = |(name, size)| Sized {
            file: file.clone(),
            name,
            size,
        };
        self.functions.extend(seen.functions.into_iter().map(sized));
        self.structs.extend(seen.structs.into_iter().map(sized));
        self.all[number].names = seen.names;
        self.all[number].paths = seen.paths;
        number
    }
}

/// What one module's items hold.
#[derive(Default)]
struct Seen {
    names: BTreeMap<String, Vec<String>>,
    paths: BTreeSet<Vec<String>>,
    functions: Vec<(String, usize)>,
    structs: Vec<(String, usize)>,
    /// The type of the `impl`, or the trait, that is looked at.
    owner: Option<String>,
}

impl Seen {
    /// From `fn` to the last brace: attributes and comments before it do not count.
    fn function(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let name = match &self.owner {
            Some(owner) => format!("{owner}::{}", signature.ident),
            None => signature.ident.to_string(),
        };
        let lines = block.span().end().line + 1 - signature.span().start().line;
        self.functions.push((name, lines));
    }

    fn used(&mut self, tree: &syn::UseTree, before: &[String], is_public: bool) {
        let with = |name: &syn::Ident| {
            let mut path = before.to_vec();
            path.push(name.to_string());
            path
        };
        let (name, path) = match tree {
            syn::UseTree::Path(path) => return self.used(&path.tree, &with(&path.ident), is_public),
            syn::UseTree::Group(group) => {
                return group.items.iter().for_each(|tree| self.used(tree, before, is_public));
            }
            syn::UseTree::Glob(_) => {
                let mut path = before.to_vec();
                path.push("*".to_string());
                ("*".to_string(), path)
            }
            syn::UseTree::Name(name) if name.ident == "self" => {
                (before.last().cloned().unwrap_or_default(), before.to_vec())
            }
            syn::UseTree::Name(name) => (name.ident.to_string(), with(&name.ident)),
            syn::UseTree::Rename(rename) => (rename.rename.to_string(), with(&rename.ident)),
        };
        // A re-export shows what a child has; only those that use the name need it.
        if !is_public {
            self.paths.insert(path.clone());
        }
        if name != "*" && name != "_" {
            self.names.insert(name, path);
        }
    }

    /// Paths in what a macro is given.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(name) => {
                    if colons != 2 {
                        self.finish(&mut path);
                    }
                    path.push(name.to_string());
                    colons = 0;
                }
                TokenTree::Punct(mark) if mark.as_char() == ':' => colons += 1,
                TokenTree::Group(group) => {
                    self.finish(&mut path);
                    colons = 0;
                    self.tokens(group.stream());
                }
                _ => {
                    self.finish(&mut path);
                    colons = 0;
                }
            }
        }
        self.finish(&mut path);
    }

    fn finish(&mut self, path: &mut Vec<String>) {
        let path = std::mem::take(path);
        if path.len() > 1 {
            self.paths.insert(path);
        }
    }
}

impl<'ast> Visit<'ast> for Seen {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if !is_for_tests(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let is_public = !matches!(item.vis, syn::Visibility::Inherited);
        self.used(&item.tree, &[], is_public);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let owner = match &*item.self_ty {
            syn::Type::Path(path) => path.path.segments.last().map(|last| last.ident.to_string()),
            _ => None,
        };
        let before = std::mem::replace(&mut self.owner, owner);
        visit::visit_item_impl(self, item);
        self.owner = before;
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        let before = self.owner.replace(item.ident.to_string());
        visit::visit_item_trait(self, item);
        self.owner = before;
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.sig, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_for_tests(&item.attrs) {
            self.function(&item.sig, &item.block);
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.function(&item.sig, block);
        }
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.structs.push((item.ident.to_string(), item.fields.len()));
        visit::visit_item_struct(self, item);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names = path.segments.iter().map(|segment| segment.ident.to_string());
        self.paths.insert(names.collect());
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.tokens(call.tokens.clone());
        visit::visit_macro(self, call);
    }
}

fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let is_test_only = |list: &syn::MetaList| list.path.is_ident("cfg") && list.tokens.to_string() == "test";
        attribute.path().is_ident("test") || matches!(&attribute.meta, syn::Meta::List(list) if is_test_only(list))
    })
}

/// Groups of files in which each leads to each other, the largest first.
pub fn circles<'a>(arrows: &Arrows<'a>) -> Vec<BTreeSet<&'a Path>> {
    let reach = |from: &'a Path| {
        let mut seen = BTreeSet::new();
        let mut next = vec![from];
        while let Some(file) = next.pop() {
            for to in arrows.get(file).into_iter().flatten() {
                if seen.insert(*to) {
                    next.push(to);
                }
            }
        }
        seen
    };
    let reached: Arrows = arrows.keys().map(|file| (*file, reach(file))).collect();
    let mut circles = BTreeSet::new();
    for (file, others) in &reached {
        let circle: BTreeSet<&Path> = others
            .iter()
            .filter(|other| reached[**other].contains(file))
            .copied()
            .collect();
        if circle.len() > 1 {
            circles.insert(circle);
        }
    }
    let mut circles: Vec<_> = circles.into_iter().collect();
    circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
    circles
}
