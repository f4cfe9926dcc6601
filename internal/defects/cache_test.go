package defects_test

import (
	"errors"
	"sync"
)

// cache is the document's store in miniature: a map under a mutex, with the
// commands that the document uses. What is wrong is their order, not the store.
type cache struct {
	mu   sync.Mutex
	keys map[string]string

	checked func() // where set, runs between the check of a message and its lock
}

func newCache() *cache { return &cache{keys: make(map[string]string)} }

func (c *cache) setIfAbsent(key, value string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, known := c.keys[key]
	if !known {
		c.keys[key] = value
	}
	return !known
}

func (c *cache) get(key string) (value string, found bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	value, found = c.keys[key]
	return value, found
}

// del is a command, and what the store does to a key whose time has come.
func (c *cache) del(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.keys, key)
}

var errLocked = errors.New("another process holds the lock")

// process is the document's receiver of messages that have a result.
func (c *cache) process(id string, handle func() (string, error)) (string, error) {
	if result, done := c.get("processed:" + id); done {
		return result, nil
	}
	if c.checked != nil {
		c.checked()
	}
	if !c.setIfAbsent("processing:"+id, "") {
		return "", errLocked
	}
	result, err := handle()
	if err != nil {
		c.del("processing:" + id)
		return "", err
	}
	c.setIfAbsent("processed:"+id, result)
	c.del("processing:" + id)
	return result, nil
}

func (c *cache) receive(id string, handle func() error) error {
	_, err := c.process(id, func() (string, error) { return "", handle() })
	return err
}
