/// Tells some requests from others: a closure `Fn(&Req) -> bool`, or one of those that this module has.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot tell requests of type `{Req}` apart",
    note = "give a closure that names its argument's type: `|request: &{Req}| ..`"
)]
pub trait Condition<Req> {
    /// Whether the request is meant.
    fn holds(&self, request: &Req) -> bool;
}

impl<Req, F: Fn(&Req) -> bool> Condition<Req> for F {
    fn holds(&self, request: &Req) -> bool {
        self(request)
    }
}
