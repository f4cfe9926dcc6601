package console

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/console/lanes"
)

var (
	//go:embed charges.sql
	selectCharges string
	//go:embed named.sql
	selectNamed string
)

const (
	pageRows   = 50
	searchRows = 20_000 // charges that one page of a search reads at most
	lastCharge = "ch_~" // behind the ID of every charge
	maxName    = 255
)

// row is a charge of the list.
type row struct {
	ChargeID, MerchantID string
	View                 domain.View

	until string // the last charge that was read, if the page was read to its bound
}

// search is the page of charges, with what was asked.
type search struct {
	Name, Status, Amount string
	Statuses             []domain.Status
	Rows                 []row
	Next                 string // the next page; "" if there is none
}

func (c *Console) charges(r *http.Request) (any, error) {
	q := r.URL.Query()
	s := search{
		Name: strings.TrimSpace(q.Get("q")), Status: q.Get("status"), Amount: strings.TrimSpace(q.Get("amount")),
		Statuses: []domain.Status{"pending", "succeeded", "failed", "partially_refunded", "refunded"},
	}
	after, read, amount := q.Get("after"), pageRows+1, (*int64)(nil)
	if len(s.Name) > maxName {
		return nil, problem{http.StatusBadRequest, "No name is so long."}
	}
	var err error
	if s.Name != "" {
		s.Rows, err = c.rows(r, selectNamed, s.Name, pageRows)
		return s, err
	}
	if s.Amount != "" {
		n, err := strconv.ParseInt(s.Amount, 10, 64)
		if err != nil {
			return nil, problem{http.StatusBadRequest, "An amount is a whole number of minor units, such as 1000 for 10.00."}
		}
		amount = &n
	}
	if after == "" {
		after = lastCharge
	}
	if s.Status != "" || amount != nil {
		read = searchRows
	}
	if s.Rows, err = c.rows(r, selectCharges, after, s.Status, amount, read, pageRows+1); err != nil {
		return nil, err
	}
	next := s.Rows[0].until
	if s.Rows[0].ChargeID == "" {
		s.Rows = nil
	} else if len(s.Rows) > pageRows {
		s.Rows = s.Rows[:pageRows]
		next = s.Rows[pageRows-1].ChargeID
	}
	if next != "" {
		s.Next = "/charges?" + url.Values{"status": {s.Status}, "amount": {s.Amount}, "after": {next}}.Encode()
	}
	return s, nil
}

func (c *Console) rows(r *http.Request, sql string, args ...any) ([]row, error) {
	rows, _ := c.db.Load().Query(r.Context(), sql, args...) // CollectRows returns its error
	return pgx.CollectRows(rows, func(one pgx.CollectableRow) (found row, err error) {
		var view []byte
		if err := one.Scan(&found.ChargeID, &found.MerchantID, &view, &found.until); err != nil {
			return found, err
		}
		return found, json.Unmarshal(view, &found.View)
	})
}

// history is the page of a charge.
type history struct {
	audit.Timeline

	Name    string
	Version int           // of the last event
	Drawing template.HTML // of lanes, which escapes what others have stored
	Entries []entry
}

// entry is a line of the timeline.
type entry struct {
	audit.TimelineEntry

	Dropped string // the constraint that dropped duplicates of it
	Since   time.Duration
}

func (c *Console) charge(r *http.Request) (any, error) {
	for range map[bool]int{true: redrawCost}[r.Header.Get("X-Redraw") != ""] {
		if err := c.live.budget.Wait(r.Context()); err != nil {
			return nil, err
		}
	}
	return c.history(r, r.PathValue("id"))
}

func (c *Console) history(r *http.Request, name string) (h history, err error) {
	if name == "" || len(name) > maxName {
		return h, audit.ErrNotFound
	}
	h.Name = name
	if h.Timeline, err = audit.ReadTimeline(r.Context(), c.db.Load(), name, ""); err != nil {
		return h, err
	}
	var drawing bytes.Buffer
	if err := lanes.Write(&drawing, h.Timeline); err != nil {
		return h, err
	}
	h.Drawing = template.HTML(drawing.String()) //nolint:gosec // as above
	for _, e := range h.Timeline.Entries {
		h.Version = max(h.Version, e.Version)
		one := entry{TimelineEntry: e, Since: e.At.Sub(h.Timeline.Entries[0].At)}
		if guard, ok := e.Detail["dropped_by"]; ok {
			one.Dropped = fmt.Sprint(guard)
		}
		h.Entries = append(h.Entries, one)
	}
	return h, nil
}
