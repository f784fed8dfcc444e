//! What the types forbid, with the compiler's own words.

#[test]
fn an_instrumented_run_is_no_speed_row() {
    trybuild::TestCases::new().compile_fail("tests/compile_fail/*.rs");
}
