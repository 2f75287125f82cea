//! Text tables.

/// Prints rows of cells under a title. The first column is aligned to the left, and the other columns to the right.
pub fn print(title: &str, head: &[&str], rows: &[Vec<String>]) {
    let mut table = vec![head.iter().map(|cell| (*cell).to_owned()).collect::<Vec<_>>()];
    table.extend_from_slice(rows);
    let width =
        |column: usize| table.iter().map(|row| row.get(column).map_or(0, |cell| cell.chars().count())).max();
    let widths: Vec<_> = (0..head.len()).map(|column| width(column).unwrap_or(0)).collect();
    println!("\n{title}\n");
    for (at, row) in table.iter().enumerate() {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match column {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        println!("| {} |", cells.collect::<Vec<_>>().join(" | "));
        if at == 0 {
            let separators = widths.iter().enumerate().map(|(column, width)| match column {
                0 => "-".repeat(width + 2),
                _ => format!("{}:", "-".repeat(width + 1)),
            });
            println!("|{}|", separators.collect::<Vec<_>>().join("|"));
        }
    }
}

pub fn ratio(value: f64) -> String {
    format!("{value:.2}")
}
