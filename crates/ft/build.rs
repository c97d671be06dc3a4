//! Programs that are linked with the library find it in the process when `resurgo run --ft` has put it there.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libresurgo-ft.so");
    println!("cargo:rerun-if-changed=build.rs");
}
