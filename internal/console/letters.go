package console

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/payonce/payonce/inbox"
	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/doorbell"
	"github.com/payonce/payonce/internal/postgres"
)

const longestReason = 500 // characters

// deadLetters is the page of dead letters, with what operators decided lately.
type deadLetters struct {
	Status  inbox.Status
	Entries []inbox.Entry
	Next    string // the next page; "" if there is none
	Actions []audit.Action
}

const selectDecisions = `
select action_id as number, acted_at at time zone 'UTC' as at, actor, login, action, subject,
       coalesce(merchant_id, '') as merchant, coalesce(before, 'null') as before, after
  from operator_actions
 where action in ('inbox retry', 'inbox discard')
 order by action_id desc
 limit 10`

func (c *Console) letters(r *http.Request) (any, error) {
	page := deadLetters{Status: inbox.StatusDead}
	if r.URL.Query().Get("status") == string(inbox.StatusDiscarded) {
		page.Status = inbox.StatusDiscarded
	}
	after, _ := strconv.ParseInt(r.URL.Query().Get("after"), 10, 64) // 0: from the first
	var err error
	if page.Entries, err = inbox.List(r.Context(), c.db.Load(), page.Status, after, pageRows+1); err != nil {
		return nil, err
	}
	if len(page.Entries) > pageRows {
		page.Entries = page.Entries[:pageRows]
		end := strconv.FormatInt(page.Entries[pageRows-1].Number, 10)
		page.Next = "/dead-letters?" + url.Values{"status": {string(page.Status)}, "after": {end}}.Encode()
	}
	rows, _ := c.db.Load().Query(r.Context(), selectDecisions) // CollectRows returns its error
	page.Actions, err = pgx.CollectRows(rows, pgx.RowToStructByName[audit.Action])
	return page, err
}

// deadLetter is the page of a message, whatever its status is.
type deadLetter struct {
	inbox.Entry

	Text string // of the payload
}

func (c *Console) letter(r *http.Request) (any, error) {
	n, err := numberOf(r)
	if err != nil {
		return nil, err
	}
	e, err := inbox.Show(r.Context(), c.db.Load(), n)
	if indented, bad := json.MarshalIndent(json.RawMessage(e.Payload), "", "  "); bad == nil {
		return deadLetter{e, string(indented)}, err
	}
	return deadLetter{e, string(e.Payload)}, err
}

func numberOf(r *http.Request) (int64, error) {
	n, err := strconv.ParseInt(r.PathValue("n"), 10, 64)
	if err != nil {
		return 0, inbox.ErrNoMessage
	}
	return n, nil
}

func (c *Console) retry(_ http.ResponseWriter, r *http.Request, actor string) (string, error) {
	return c.decide(r, actor, "retried", inbox.Retry)
}

func (c *Console) discard(_ http.ResponseWriter, r *http.Request, actor string) (string, error) {
	if strings.TrimSpace(r.PostForm.Get("reason")) == "" {
		return "", errNoReason
	}
	return c.decide(r, actor, "discarded", inbox.Discard)
}

var errNoReason = problem{http.StatusUnprocessableEntity, "Give a reason of at most 500 characters: the audit log keeps it."}

const setReason = `
select set_config('payonce.reason', $1, true)`

// decide stores a decision with its operator and reason.
//
// If we die here: the decision is stored with both, or not at all. Test: TestDeadLetters.
func (c *Console) decide(
	r *http.Request, actor, what string, decision func(context.Context, postgres.Querier, int64, string) error,
) (string, error) {
	n, err := numberOf(r)
	if err != nil {
		return "", err
	}
	reason := strings.TrimSpace(r.PostForm.Get("reason"))
	if len([]rune(reason)) > longestReason {
		return "", errNoReason
	}
	ctx := r.Context()
	err = pgx.BeginFunc(ctx, c.db.Load().Pool(), func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, setReason, reason); err != nil {
			return err
		}
		return decision(ctx, tx, n, actor)
	})
	if err != nil {
		return "", err
	}
	c.bell.Ring(doorbell.Inbox)
	c.live.hurry()
	return "/dead-letters?done=" + what + "-" + strconv.FormatInt(n, 10), nil
}

var isDone = regexp.MustCompile(`^(retried|discarded)-(\d{1,18})$`)

// done says what the form before this page did.
func done(r *http.Request) string {
	if m := isDone.FindStringSubmatch(r.URL.Query().Get("done")); m != nil {
		return "Message " + m[2] + " was " + m[1] + ". The audit log has it under your name."
	}
	return ""
}
