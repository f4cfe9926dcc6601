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
	keptFor    = time.Second
	mostPages  = 100 // that are kept
	pageTime   = 30 * time.Second
	tickTime   = 5 * time.Second
	auditEvery = 30 * time.Second // from the end of an audit to the begin of the next
	auditShare = 10               // the audit uses one part in so many of the time
)

// kept is a value that is read again when it is a second old.
type kept[T any] struct {
	mu    sync.Mutex // while it is read
	at    time.Time
	value T
}

func (k *kept[T]) get(now func() time.Time, read func(last T) T) T {
	k.mu.Lock()
	defer k.mu.Unlock()
	if now().Sub(k.at) >= keptFor {
		k.value = read(k.value)
		k.at = now()
	}
	return k.value
}

// page is what is sent to browsers.
type page struct {
	status int
	text   []byte
}

// serve sends a page. All requests for one address get one answer for a second, so what the first
// of them reads does not end with its browser.
func (c *Console) serve(w http.ResponseWriter, r *http.Request, name string, read func(*http.Request) (any, error)) {
	k := &kept[page]{}
	if known, ok, _ := c.recent.PeekOrAdd(r.URL.RequestURI(), k); ok {
		k = known
	}
	k.get(c.Now, func(page) page {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), pageTime)
		defer cancel()
		r = r.WithContext(ctx)
		data, err := any(nil), error(errNoDatabase)
		if c.db.Load() != nil {
			data, err = read(r)
		}
		return c.render(r, name, data, err)
	}).send(w)
}

func (p page) send(w http.ResponseWriter) {
	if p.status == http.StatusServiceUnavailable {
		w.Header().Set("Refresh", "2")
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(p.status)
	_, _ = w.Write(p.text) // to a browser that may have gone
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
}

// audited is the last whole audit.
type audited struct {
	Audit    []audit.Check
	AuditAt  time.Time // when it ended; zero: none has yet
	AuditErr string
}

// tick is read by one statement.
func (c *Console) tick(ctx context.Context) *tick {
	select {
	case c.viewed <- struct{}{}:
	default:
	}
	return c.newest.get(c.Now, func(last *tick) *tick {
		if last == nil {
			last = &tick{}
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tickTime)
		defer cancel()
		t := &tick{}
		if err := c.readFacts(ctx, last.Followed, &t.facts); err != nil {
			if last.Err == "" {
				c.Log.WarnContext(ctx, "the database is not read", "error", err)
			}
			*t = *last
			t.Err = "The database does not answer. The page shows what it said last."
		} else {
			t.Programs = programsOf(t.facts, c.seen)
			t.Alive, t.Wrong = judge(t.facts, t.Programs)
		}
		t.audited, t.Broken = c.audited.Load(), 0
		for _, m := range slices.Concat(t.Quick, t.Audit) {
			t.Broken += int(m.Violated)
		}
		return t
	})
}

func (c *Console) readFacts(ctx context.Context, followed []int64, f *facts) error {
	db := c.db.Load()
	if db == nil {
		return errNoDatabase
	}
	var text []byte
	if err := db.QueryRow(ctx, selectFlow, receivers, followed, domain.Topic).Scan(&text); err != nil {
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
		report, err := audit.Run(ctx, db.Pool())
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
