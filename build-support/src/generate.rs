//! The texts written for a module: the translation units and the Rust expression.

use std::fmt::Write as _;
use std::path::PathBuf;

use crate::{Error, files};

/// A module with everything checked and made absolute.
#[derive(Debug, Hash)]
pub(crate) struct Unit {
    /// The module's name.
    pub name: String,
    /// What follows `oxshmem_module_` in the entry symbol: package, version and name, since names
    /// are unique in a package only.
    pub symbol_tail: String,
    /// Sources, in order.
    pub sources: Vec<PathBuf>,
    /// Folders searched for headers, the device headers' last.
    pub includes: Vec<PathBuf>,
    /// Macros.
    pub defines: Vec<(String, String)>,
    /// The device headers.
    pub headers: PathBuf,
    /// What PTX is made for, ascending.
    pub architectures: Vec<u32>,
    /// Cubins are made in release builds alone.
    pub large: bool,
    /// What its functions use is reported in every build.
    pub reports_usage: bool,
}

impl Unit {
    /// Returns the module's entry symbol, which `oxshmem/port/module.h` defines; also the name of
    /// its static library.
    pub fn symbol(&self) -> String {
        format!("oxshmem_module_{}", self.symbol_tail)
    }

    /// Returns the sources and all device headers: what a compilation depends on whatever its
    /// dependency file lists.
    pub fn inputs(&self) -> Result<Vec<PathBuf>, Error> {
        Ok([self.sources.clone(), files::under(&self.headers)?].concat())
    }

    /// Returns the host compiler's arguments for include folders.
    pub fn include_args(&self) -> Vec<String> {
        self.includes.iter().map(|dir| format!("-I{}", dir.display())).collect()
    }

    /// Returns nvcc's arguments for include folders. It takes `-I` as a list with commas and knows
    /// no escape there, but it does in what it hands on to its host compiler, through a shell.
    pub fn nvcc_include_args(&self) -> Vec<String> {
        let mut args = self.include_args();
        // All of them go the same way, or the compiler would search them in another order.
        if args.iter().any(|arg| arg.contains(',')) {
            args = args.iter().map(|arg| format!("-Xcompiler=\"{}\"", arg.replace(',', "\\,"))).collect();
        }
        args
    }
}

/// Returns the translation unit of a module, the same for its CPU object and its PTX. Macros are in
/// it, because nvcc takes `-D` as a list with commas and hands the values to a shell.
pub(crate) fn translation_unit(unit: &Unit) -> String {
    let mut text = format!("#define OXSHMEM_MODULE_NAME {}\n", unit.symbol_tail);
    for (name, value) in &unit.defines {
        let _ = writeln!(text, "#define {name} {value}");
    }
    text.push_str(&include_lines(unit));
    text.push_str("#include <oxshmem/port/module.h>\n");
    text
}

fn include_lines(unit: &Unit) -> String {
    unit.sources.iter().fold(String::new(), |mut text, path| {
        let _ = writeln!(text, "#include \"{}\"", path.display());
        text
    })
}

/// Returns the Rust expression for `oxshmem::include_module!`, given the PTX files and cubins
/// beside it.
///
/// The library is named in a `#[link]` attribute, not in a directive to cargo, since cargo hands a
/// directive to a package's library target alone if it has one. `-whole-archive` makes the linker
/// take the object once even where both a library and a test of it include the module.
pub(crate) fn rust_expression(unit: &Unit, ptx: &[(u32, PathBuf)], cubins: &[(u32, PathBuf)]) -> String {
    let symbol = unit.symbol();
    let list = |images: &[(u32, PathBuf)], include: &str, as_slice: &str| {
        let images = images.iter().map(|(arch, path)| {
            let file = path.file_name().unwrap_or_default().to_string_lossy();
            format!("({arch}, {include}!({file:?}){as_slice})")
        });
        images.collect::<Vec<_>>().join(", ")
    };
    format!(
        "{{\n    \
             #[link(name = {symbol:?}, kind = \"static\", modifiers = \"-whole-archive\")]\n    \
             #[link(name = \"stdc++\")]\n    \
             unsafe extern \"C\" {{\n        \
                 fn {symbol}() -> *const ::core::ffi::c_void;\n    \
             }}\n    \
             // SAFETY: the function is that of the module's CPU object.\n    \
             unsafe {{ ::oxshmem::ModuleSource::from_build({:?}, &[{}], &[{}], {symbol}) }}\n\
         }}\n",
        unit.name,
        list(ptx, "include_str", ""),
        list(cubins, "include_bytes", ".as_slice()"),
    )
}
