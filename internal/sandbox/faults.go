package sandbox

import (
	"cmp"
	"math/rand/v2"
	"sync"
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
}

// fault is what one request meets, before its effect or after it.
type fault struct {
	slow                    time.Duration
	cutBefore, cutAfter     bool
	errorBefore, errorAfter bool
	shopDown                bool
	keepKeys                time.Duration
}

// faults is the plan in force. A restarted sandbox has none.
type faults struct {
	mu       sync.Mutex
	plan     plan
	keepKeys time.Duration
	random   *rand.Rand
}

// set starts the plan's sequence of draws from its seed.
func (f *faults) set(p plan, keepKeys time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.plan, f.keepKeys = p, keepKeys
	f.random = rand.New(rand.NewPCG(uint64(p.Seed), 0)) //nolint:gosec // faults must repeat
}

// draw returns the next of the plan's sequence. Each draw takes five numbers, so
// changing one probability moves no other fault.
func (f *faults) draw() fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	var n [5]float64
	for i := range n {
		n[i] = f.random.Float64()
	}
	p, fails := f.plan, n[2] < f.plan.Error500
	met := fault{
		cutBefore: n[0] < p.DropBefore, cutAfter: n[1] < p.DropAfter,
		errorBefore: fails && n[3] >= 0.5, errorAfter: fails && n[3] < 0.5, shopDown: p.ShopDown,
		keepKeys: f.keepKeys,
	}
	if n[4] < p.Slow.P {
		met.slow = time.Duration(p.Slow.MS) * time.Millisecond
	}
	return met
}

// putFaults is PUT /faults.
func (s *Sandbox) putFaults(c *call, _ *change) (any, error) {
	var p plan
	if err := c.json(&p); err != nil {
		return nil, err
	}
	for _, probability := range []float64{p.DropBefore, p.DropAfter, p.Error500, p.Slow.P} {
		if probability < 0 || probability > 1 {
			return nil, invalid("", "", "%v is no probability from 0 to 1.", probability)
		}
	}
	if p.Slow.MS < 0 || p.Slow.MS > slowMax {
		return nil, invalid("", "slow.ms", "slow.ms is %d: give milliseconds from 0 to %d.", p.Slow.MS, slowMax)
	}
	keepKeys, err := time.ParseDuration(cmp.Or(p.ForgetKeysAfter, keyRetention.String()))
	if err != nil || keepKeys < 0 {
		return nil, invalid("", "forget_keys_after", "forget_keys_after is %q: give a duration such as 24h.", p.ForgetKeysAfter)
	}
	s.faults.set(p, keepKeys)
	return p, nil
}

// deleteFaults is DELETE /faults.
func (s *Sandbox) deleteFaults(*call, *change) (any, error) {
	s.faults.set(plan{}, keyRetention)
	return nil, nil
}
