//! The sandbox's own first process, for programs that do not carry it themselves (the tests of this crate).

fn main() {
    assay_sandbox::become_init_if_asked();
    eprintln!("this program is started by assay-sandbox alone");
    std::process::exit(2);
}
