package console

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/payonce/payonce/domain"
	"github.com/payonce/payonce/internal/audit"
	"github.com/payonce/payonce/internal/loop"
	"github.com/payonce/payonce/internal/postgres"
)

const (
	answerAge   = time.Second // for which an answer is sent again before the database is read again
	mostAnswers = 100         // that are kept
	readTime    = 30 * time.Second

	auditEvery = 30 * time.Second // from the end of an audit to the begin of the next
	auditShare = 10               // the audit uses one part in so many of the time
)

// answer is a page as it was sent last.
type answer struct {
	sync.Mutex // while the page is read

	at     time.Time
	status int
	text   []byte
}

// serve sends a page. All requests for one address get one answer for a second.
func (c *Console) serve(w http.ResponseWriter, r *http.Request, page string, read func(*http.Request) (any, error)) {
	a := &answer{}
	if known, ok, _ := c.answers.PeekOrAdd(r.URL.RequestURI(), a); ok {
		a = known
	}
	a.Lock()
	defer a.Unlock()
	if c.Now().Sub(a.at) >= answerAge {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), readTime) // others wait for the answer too
		defer cancel()
		r = r.WithContext(ctx)
		data, err := any(nil), error(errNoDatabase)
		if c.db.Load() != nil {
			data, err = read(r)
		}
		a.status, a.text = c.render(r, page, data, err)
		a.at = c.Now()
	}
	write(w, a.status, a.text)
}

// receivers are those of fulfillment, which the console does not link.
var receivers = slices.Concat([]string{"fulfillment"}, domain.Subscribers(), []string{"resend"})

// tick is what the Flow page, and the line that every page has, show at one moment.
type tick struct {
	facts
	*audited

	Programs []process
	Alive    map[string]int   // programs of a kind
	Wrong    map[string]wrong // by the part of the diagram
	Broken   int              // violations of both
	Err      string           // the database does not answer; the rest is what it said last

	read time.Time
}

// audited is the last whole audit.
type audited struct {
	Audit    []audit.Check
	AuditAt  time.Time // when it ended; zero: none has yet
	AuditErr string
}

// tick reads one statement, or returns what it read within the last second.
func (c *Console) tick(ctx context.Context) *tick {
	c.ticking.Lock()
	defer c.ticking.Unlock()
	select {
	case c.viewed <- struct{}{}:
	default:
	}
	last := c.newest
	if c.Now().Sub(last.read) < answerAge {
		return last
	}
	t := &tick{}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second) // others read the tick too
	defer cancel()
	err := c.readFacts(ctx, last.Followed, &t.facts)
	if err == nil {
		t.Programs = programsOf(t.facts, c.seen)
		t.Alive, t.Wrong = judge(t.facts, t.Programs)
	} else {
		if last.Err == "" {
			c.Log.WarnContext(ctx, "the database is not read", "error", err)
		}
		*t = *last
		t.Err = "The database does not answer. The page shows what it said last."
	}
	t.read, t.audited, t.Broken = c.Now(), c.audited.Load(), 0
	for _, m := range slices.Concat(t.Quick, t.Audit) {
		t.Broken += int(m.Violated)
	}
	c.newest = t
	return t
}

func (c *Console) readFacts(ctx context.Context, followed []int64, f *facts) error {
	db := c.db.Load()
	if db == nil {
		return errNoDatabase
	}
	var text []byte
	if err := db.QueryRow(ctx, selectFlow, receivers, followed, domain.Topics()).Scan(&text); err != nil {
		return err
	}
	return json.Unmarshal(text, f)
}

// auditAlways runs whole audits while pages are read.
func (c *Console) auditAlways(ctx context.Context, db *postgres.DB) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.viewed:
		}
		began := c.Now()
		report, err := audit.Run(ctx, db)
		ended := c.Now()
		next := audited{report.Checks, ended, ""}
		if err != nil {
			next = *c.audited.Load()
			next.AuditErr = fmt.Sprintf("The audit could not be finished: %v", err)
		}
		c.audited.Store(&next)
		loop.Pause(ctx, max(auditEvery, (auditShare-1)*ended.Sub(began)), nil)
	}
}
