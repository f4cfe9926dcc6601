package console

import (
	"errors"
	"net/http"
	"strings"

	"github.com/jackc/pgx/v5"
)

// tour is the page Learn: a charge, without one if none has succeeded.
type tour struct{ history }

// The newest charge that succeeded, of which no refund was asked.
const selectLearned = `
select charge_id
  from charge_list
 where generation = (select generation from projections where state = 'live')
   and status = 'succeeded'
 order by charge_id desc
 limit 1`

func (c *Console) learn(r *http.Request) (any, error) {
	name := r.URL.Query().Get("charge")
	if name == "" {
		err := c.db.Load().QueryRow(r.Context(), selectLearned).Scan(&name)
		if errors.Is(err, pgx.ErrNoRows) {
			return tour{}, nil
		} else if err != nil {
			return nil, err
		}
	}
	h, err := c.history(r, name)
	return tour{h}, err
}

// Rows are the entries of a step: those whose kind, text and author begin so.
func (t tour) Rows(beginnings ...string) (rows []entry) {
	for _, e := range t.Entries {
		for _, begin := range beginnings {
			if strings.HasPrefix(e.Kind+" "+e.What+" "+e.Who, begin) {
				rows = append(rows, e)
			}
		}
	}
	return rows
}
