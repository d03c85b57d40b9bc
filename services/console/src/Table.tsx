/** A table that is sorted by a click on a column's name, and of which the rows with some words are shown. */
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { arranged, clicked, type Arrangeable, type Order } from "./arranged";

export interface Column<Row> extends Arrangeable<Row> {
  readonly name: string;
  /** What it shows, where that is not what it is sorted by. */
  readonly cell?: (row: Row) => ComponentChildren;
  readonly num?: boolean;
}

interface Props<Row> {
  readonly rows: readonly Row[];
  readonly columns: readonly Column<Row>[];
  readonly keyOf: (row: Row) => string;
  /** So many rows are shown at most. */
  readonly most?: number;
}

/** Tables of fewer rows are taken in at a glance. */
const FILTERED_FROM = 6;

export function Table<Row>({ rows, columns, keyOf, most = Infinity }: Props<Row>) {
  const [order, setOrder] = useState<Order | null>(null);
  const [wanted, setWanted] = useState("");
  const found = arranged(rows, columns, order, wanted);
  return (
    <div class="scroll">
      {rows.length >= FILTERED_FROM && (
        <label class="row small">
          <span class="soft">Rows with</span>
          <input type="search" value={wanted} onInput={(event) => setWanted(event.currentTarget.value)} />
          {wanted !== "" && (
            <span class="soft" role="status">
              {found.length} of {rows.length}
            </span>
          )}
        </label>
      )}
      <table>
        <thead>
          <tr>
            {columns.map(({ name, num }, place) => {
              const down = order?.column === place ? order.down : null;
              return (
                <th key={name} class={num === true ? "num" : ""} aria-sort={down === null ? "none" : down ? "descending" : "ascending"}>
                  <button type="button" class="sort" onClick={() => setOrder(clicked(order, place))}>
                    {name}
                    <span aria-hidden="true">{down === null ? "" : down ? " ▼" : " ▲"}</span>
                  </button>
                </th>
              );
            })}
          </tr>
        </thead>
        <tbody>
          {found.slice(0, most).map((row) => (
            <tr key={keyOf(row)}>
              {columns.map(({ name, by, cell, num }) => (
                <td key={name} class={num === true ? "num" : ""}>
                  {cell === undefined ? by(row) : cell(row)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
