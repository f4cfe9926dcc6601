package sandbox

import (
	"cmp"
	"math/rand/v2"
	"net/http"
	"time"
)

const (
	keyRetention = 24 * time.Hour // for which keys are known unless a plan says otherwise
	slowMax      = 60_000         // milliseconds of one delay
)

// plan is the body of PUT /faults. Each p is a probability, drawn per request.
type plan struct {
	Seed       int64   `json:"seed"`
	DropBefore float64 `json:"drop_before"`
	DropAfter  float64 `json:"drop_after"`
	Error500   float64 `json:"error_500"`
	Slow       struct {
		P  float64 `json:"p"`
		MS int64   `json:"ms"`
	} `json:"slow"`
	ShopDown bool `json:"shop_down"`
	// ForgetKeysAfter is a duration as Go writes it; "" means 24 h, "0s" that every key is new.
	ForgetKeysAfter string `json:"forget_keys_after"`

	keep time.Duration // ForgetKeysAfter
}

// fault is what one request meets: the plan, and the numbers that were drawn. A connection is cut before
// anything was decided, or after everything was recorded. A drawn 500 happens before the effect or after it, half
// and half, and is saved under the key; a replayed answer does not become a 500. The zero fault is none.
type fault struct {
	plan

	before, after, fails, half, slow float64
}

// follow starts the plan's sequence of draws from its seed. The lock is held.
func (s *Sandbox) follow(p plan) {
	s.plan = p
	s.random = rand.New(rand.NewPCG(uint64(p.Seed), 0)) //nolint:gosec // faults must repeat
}

// draw returns the next of the plan's sequence. Each draw takes five numbers, so
// changing one probability moves no other fault. The lock is held.
func (s *Sandbox) draw() fault {
	next := s.random.Float64
	return fault{plan: s.plan, before: next(), after: next(), fails: next(), half: next(), slow: next()}
}

// putFaults is PUT /faults.
func (s *Sandbox) putFaults(c *call) any {
	var p plan
	if e := c.json(&p); e != nil {
		return e
	}
	for _, probability := range []float64{p.DropBefore, p.DropAfter, p.Error500, p.Slow.P} {
		if probability < 0 || probability > 1 {
			return invalid("", "", "%v is no probability from 0 to 1.", probability)
		}
	}
	if p.Slow.MS < 0 || p.Slow.MS > slowMax {
		return invalid("", "slow.ms", "slow.ms is %d: give milliseconds from 0 to %d.", p.Slow.MS, slowMax)
	}
	var err error
	if p.keep, err = time.ParseDuration(cmp.Or(p.ForgetKeysAfter, keyRetention.String())); err != nil || p.keep < 0 {
		return invalid("", "forget_keys_after", "forget_keys_after is %q: give a duration such as 24h.", p.ForgetKeysAfter)
	}
	s.follow(p)
	return p
}

// deleteFaults is DELETE /faults.
func (s *Sandbox) deleteFaults(*call) any {
	s.follow(plan{keep: keyRetention})
	return answer{status: http.StatusNoContent}
}
