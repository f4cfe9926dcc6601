package e2e_test

import (
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/payonce/payonce/internal/await"
	"github.com/payonce/payonce/internal/robustness/failpoint"
)

// soakStall lets the provider keep some charges waiting, each call about them for
// longer than a worker waits for an answer. All the others must end meanwhile. How
// fast they do is logged, not judged: the order is tested.
//
// The limit: a call that waits holds one of a worker's hands, so there are fewer
// slow charges here than there are hands.
func soakStall(t *testing.T) {
	t.Helper()
	n, slow := soaked(t, "charges", 3_000, 30), soaked(t, "slow charges", 64, 8)
	p := &slowProvider{marked: map[string]bool{}, released: make(chan struct{})}
	d := deploy(t, setup{apis: 1, workers: 2, gated: true, stock: map[string]int{"tshirt": 2 * (n + slow)}})
	d.gates.set(p.guard)
	var waiting []string
	for range slow {
		o := newOrder(visa)
		o.Amount = slowAmount
		waiting = append(waiting, d.send(t, o).ID)
	}
	await.True(t, "the provider keeps all slow charges waiting", func() bool { return p.intents() == slow })

	d.flowing(t, n, 4, visa, visa, cardDeclined).finish(t, d)
	await.Row(t, d.tables, `select count(*) = $1 from ledger_events where type in ('charge.succeeded.v1', 'charge.failed.v1')`, n)
	mustRead(t, d, 0, `select count(*) from ledger_events where type in ('charge.succeeded.v1', 'charge.failed.v1') and stream_id = any($1)`, waiting)
	held := p.release()
	if held < slow {
		t.Errorf("the provider kept %d calls for %d charges: this showed nothing", held, slow)
	}
	d.drain(t)

	const latency = `
select concat_ws(' ', 'median', (percentile_disc(0.5) within group (order by took))::text,
                      'p99', (percentile_disc(0.99) within group (order by took))::text,
                      'most', max(took)::text)
  from (
        select round(1000 * extract(epoch from o.recorded_at - r.recorded_at)) as took
          from ledger_events r
          join ledger_events o
            on o.stream_id = r.stream_id
           and o.type in ('charge.succeeded.v1', 'charge.failed.v1')
         where r.type = 'charge.requested.v1'
           and r.stream_id <> all($1)) t`
	d.sampleKeys(t, 1000)
	t.Logf("%d charges ended while %d waited for a provider that kept %d calls: %s; from accepted to ended, in ms: %s",
		n, slow, held, none(n, "charges that an unanswered call held up"), row[string](t, d, latency, waiting))
}

// slowAmount marks the charges that the provider is slow with.
const slowAmount = 10_007

// slowProvider keeps every call but the first one about a marked payment until it is
// released.
type slowProvider struct {
	mu       sync.Mutex
	marked   map[string]bool // payment intents
	held     int             // calls that were kept
	released chan struct{}
}

// intents is how many payments it keeps waiting.
func (p *slowProvider) intents() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.marked)
}

// release lets every call pass, and returns how many were kept.
func (p *slowProvider) release() (held int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.released)
	return p.held
}

// guard is for the gates.
func (p *slowProvider) guard(at passage) bool {
	if at.side == failpoint.Before && p.keeps(at.path) {
		select {
		case <-p.released:
		case <-time.After(keptFor): // the worker has given up
		}
	}
	var intent struct {
		ID     string `json:"id"`
		Amount int64  `json:"amount"`
	}
	if at.side == failpoint.After && at.call == "create" && json.Unmarshal(at.answer, &intent) == nil && intent.Amount == slowAmount {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.marked[intent.ID] = true
	}
	return true
}

// keptFor is longer than a worker waits for an answer.
const keptFor = 40 * time.Second

func (p *slowProvider) keeps(path string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id := range p.marked {
		if strings.Contains(path, id) {
			p.held++
			return true
		}
	}
	return false
}
