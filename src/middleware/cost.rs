/// What a request costs, in units of the quota.
///
/// Implemented by functions of the request. A cost of 0 is always allowed.
pub trait Cost<Req> {
    /// The cost of `request`.
    fn cost(&self, request: &Req) -> u64;
}

/// Every request costs one unit.
#[derive(Clone, Copy, Debug, Default)]
pub struct One;

impl<Req> Cost<Req> for One {
    fn cost(&self, _: &Req) -> u64 {
        1
    }
}

impl<Req, F> Cost<Req> for F
where
    F: Fn(&Req) -> u64,
{
    fn cost(&self, request: &Req) -> u64 {
        self(request)
    }
}
