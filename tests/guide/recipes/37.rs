// lambda_http takes minutes to build, so `tests/recipes/serverless` has the test.
#[cfg(any())]
mod tested_elsewhere {
    // the block
}

fn main() {}
