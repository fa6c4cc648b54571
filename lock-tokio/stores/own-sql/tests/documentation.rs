//! The code of docs/registers-sql.md is that which is tested.

use std::fs;
use std::path::Path;

fn file(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").join(path);
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn page_has_the_recipe_and_the_tables() {
    let page = file("docs/registers-sql.md");
    let recipe = file("lock-tokio/stores/own-sql/src/lib.rs");
    let postgres = file("lock-tokio/stores/postgres/src/lib.rs");
    let code: Vec<_> = page.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(code.len() == 1 && recipe.ends_with(code[0]), "the recipe of the page is another one");
    let tables: Vec<_> = page.split("```sql\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    let (of_postgres, grants) = tables[0].split_once(";\n").expect("a table and its grants");
    assert!(postgres.contains(of_postgres) && grants.starts_with("GRANT"), "the table of Postgres is another one");
    assert!(postgres.contains(tables[1].trim_end()), "the deletion of the page is another one");
    assert!(recipe.contains(tables[2].trim_end()), "the table of the recipe is another one");
}
