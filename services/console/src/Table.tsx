/** A table: sorted by its columns' names, filtered by words; both are in the address. Where it is narrow each row is a card. */
import type { ComponentChildren } from "preact";
import { arranged, clicked, type Arrangeable } from "./arranged";
import { replaceQuery, useRoute } from "./route";
import { NO_DATA } from "./units";

export interface Column<Row> extends Arrangeable<Row> {
  /** What it shows, where that is not what it is sorted by. */
  readonly cell?: (row: Row) => ComponentChildren;
  readonly num?: boolean;
}

interface Props<Row> {
  /** Its name in the address: no two tables of a page have the same. */
  readonly id: string;
  readonly rows: readonly Row[];
  readonly columns: readonly Column<Row>[];
  readonly keyOf: (row: Row) => string;
  /** So many rows are shown at most. */
  readonly most?: number;
}

/** Tables of fewer rows are taken in at a glance. */
const FILTERED_FROM = 6;

export function Table<Row>({ id, rows, columns, keyOf, most = Infinity }: Props<Row>) {
  const { query } = useRoute();
  const [sort, find] = [`sort-${id}`, `find-${id}`];
  const [order, wanted] = [query[sort] ?? null, query[find] ?? ""];
  const found = arranged(rows, columns, order, wanted);
  return (
    <div class="table">
      {(rows.length >= FILTERED_FROM || wanted !== "") && (
        <label class="row small">
          <span class="soft">Rows with</span>
          <input type="search" value={wanted} onInput={({ currentTarget: { value } }) => replaceQuery({ [find]: value === "" ? null : value })} />
          {wanted !== "" && (
            <span class="soft" role="status">
              {found.length === 0 ? `none of ${rows.length} rows has these words` : `${found.length} of ${rows.length}`}
            </span>
          )}
        </label>
      )}
      <div class="scroll">
        <table role="table">
          <thead role="rowgroup">
            <tr role="row">
              {columns.map(({ name, num }) => {
                const down = order === name ? false : order === `-${name}` ? true : null;
                return (
                  <th key={name} role="columnheader" class={num === true ? "num" : ""} aria-sort={down === null ? "none" : down ? "descending" : "ascending"}>
                    <button type="button" class="sort" onClick={() => replaceQuery({ [sort]: clicked(order, name) })}>
                      {name}
                      <span aria-hidden="true">{down === null ? "" : down ? " ▼" : " ▲"}</span>
                    </button>
                  </th>
                );
              })}
            </tr>
          </thead>
          <tbody role="rowgroup">
            {found.slice(0, most).map((row) => (
              <tr key={keyOf(row)} role="row">
                {columns.map(({ name, by, cell, num }) => (
                  <td key={name} role="cell" class={num === true ? "num" : ""} data-name={name}>
                    {cell !== undefined ? cell(row) : (by(row) ?? <span class="soft">{NO_DATA}</span>)}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </div>
  );
}
