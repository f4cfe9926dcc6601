package httpapi

import (
	"container/list"
	"crypto/sha256"
	"sync"
)

// mostKnownKeys bounds the memory of keys to about two megabytes. A key that was
// forgotten is one that opened nothing yet: it stands in the other line once.
const mostKnownKeys = 10_000

// knownKeys remember whose the API keys are that opened something lately, by their
// hashes. They let nobody in: each request's key is looked up in the database, so
// one that is revoked or has expired opens nothing from then on. What they decide
// is in which line it stands, and who is refused before. The longest unused one is
// forgotten first.
type knownKeys struct {
	most int
	mu   sync.Mutex
	of   map[[sha256.Size]byte]*list.Element // of knownKey
	used *list.List                          // the latest first
}

type knownKey struct {
	id       [sha256.Size]byte
	merchant string
}

func newKnownKeys(most int) knownKeys {
	return knownKeys{most: most, of: map[[sha256.Size]byte]*list.Element{}, used: list.New()}
}

// merchant is whose a key was when it was last looked up, "" if that is not known.
func (k *knownKeys) merchant(id [sha256.Size]byte) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	e := k.of[id]
	if e == nil {
		return ""
	}
	k.used.MoveToFront(e)
	known, _ := e.Value.(knownKey) // nothing else is in the list
	return known.merchant
}

func (k *knownKeys) remember(id [sha256.Size]byte, merchant string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if e := k.of[id]; e != nil {
		e.Value = knownKey{id, merchant}
		k.used.MoveToFront(e)
		return
	}
	k.of[id] = k.used.PushFront(knownKey{id, merchant})
	if k.used.Len() > k.most {
		k.drop(k.used.Back())
	}
}

// forget makes a key one that opened nothing: it does not count as its merchant's.
func (k *knownKeys) forget(id [sha256.Size]byte) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if e := k.of[id]; e != nil {
		k.drop(e)
	}
}

func (k *knownKeys) drop(e *list.Element) {
	known, _ := k.used.Remove(e).(knownKey)
	delete(k.of, known.id)
}
