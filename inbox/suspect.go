package inbox

// A message that ends its process dies with every holder; one that ran beside it
// dies with some. No single death tells them apart, so three rules do:
//
//   - deaths are counted apart from attempts, and forgotten as soon as a holder
//     comes back, whatever it says;
//   - after three in a row a message is a suspect, and with every further death
//     half as many suspects are tried together: from the eighth on it is tried
//     without another one, beside messages that are not suspected. So whatever
//     one message ends, nothing dies with it more than eight times;
//   - MaxDeaths is far above MaxAttempts: somebody who kills processes from
//     outside hits the innocent too, again and again.

const (
	// suspicion is how many deaths in a row make a suspect. The claim and the
	// index inbox_suspects say the same of a row before its next claim, hence one
	// less.
	suspicion = 3

	// tried bounds the weights of the suspects that one process tries together.
	// The claim knows it too.
	tried = 32
)

func (c claimed) suspect() bool { return c.deaths >= suspicion }

// weight is 1 for a fresh suspect and doubles with each death.
func (c claimed) weight() int {
	if !c.suspect() {
		return 0
	}
	return min(tried, 1<<min(c.deaths-suspicion, 16))
}

// scale is what suspects may still be put on it; r.mu is held.
func (r *run) scale() int {
	left := tried
	for _, h := range r.held {
		left -= h.message.weight()
	}
	return left
}
