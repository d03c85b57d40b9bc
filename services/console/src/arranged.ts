/** The rows of a table that are wanted, in the order that is wanted. */

/** Null: not known. */
export type Sortable = string | number | null;

export interface Arrangeable<Row> {
  readonly name: string;
  /** What the column is sorted by. */
  readonly by: (row: Row) => Sortable;
  /** What is searched in it, where that is something else. */
  readonly text?: (row: Row) => string;
}

/** As an address has it: a column's name, with a minus before it from the greatest down; null: as the rows came. */
export type Order = string | null;

/** The order after a click on a column's name: up, then down, then as the rows came. */
export function clicked(order: Order, column: string): Order {
  return order === column ? `-${column}` : order === `-${column}` ? null : column;
}

/** The rows of which some column has each of the words, sorted; what is not known comes last either way. */
export function arranged<Row>(rows: readonly Row[], columns: readonly Arrangeable<Row>[], order: Order, wanted: string): readonly Row[] {
  const words = wanted.toLowerCase().split(/\s+/).filter(Boolean);
  const text = (row: Row) => columns.map(({ by, text: read }) => (read ?? by)(row) ?? "").join("\n").toLowerCase();
  const found = words.length === 0 ? rows : rows.filter((row) => words.every((word) => text(row).includes(word)));
  const by = columns.find(({ name }) => order === name || order === `-${name}`);
  return by === undefined ? found : [...found].sort((a, b) => compared(by.by(a), by.by(b), order !== by.name));
}

function compared(a: Sortable, b: Sortable, down: boolean): number {
  if (a === null || b === null) {
    return Number(a === null) - Number(b === null);
  }
  const up = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
  return down ? -up : up;
}
