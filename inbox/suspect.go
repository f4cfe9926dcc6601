package inbox

// A message that ends its process dies with every holder; one that ran beside it
// dies with some. No single death tells them apart, so three rules do:
//
//   - deaths are counted apart from attempts, and forgotten as soon as a holder
//     comes back, whatever it says;
//   - after three in a row a message is a suspect, and a process tries one suspect
//     of a receiver at a time, beside whatever else it does. So two suspects never
//     meet, and what ran beside a guilty one dies with it three times at most;
//   - MaxDeaths is far above MaxAttempts: somebody who kills processes from
//     outside hits the innocent too, again and again.
//
// The price: after three deaths in a row of a busy process, what it held is tried
// one after the other.

// suspicion is how many deaths in a row make a suspect. The claim and the index
// inbox_suspects say the same of a row before its next claim, hence one less.
const suspicion = 3

func (c claimed) suspect() bool { return c.deaths >= suspicion }

// suspects is how many suspects may be taken now; r.mu is held.
func (r *run) suspects() int {
	for _, h := range r.held {
		if h.message.suspect() {
			return 0
		}
	}
	return 1
}
