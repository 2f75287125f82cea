// async-graphql takes minutes to build, so `tests/recipes/graphql.rs` has the test.
#[cfg(any())]
mod tested_elsewhere {
    // the block
}

fn main() {}
