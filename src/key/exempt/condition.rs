/// Tells some requests from others: a closure `Fn(&Req) -> bool`, or one of those that this module has.
pub trait Condition<Req> {
    /// Whether the request is meant.
    fn holds(&self, request: &Req) -> bool;
}

impl<Req, F: Fn(&Req) -> bool> Condition<Req> for F {
    fn holds(&self, request: &Req) -> bool {
        self(request)
    }
}
