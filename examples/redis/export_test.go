package rediscache

// Patience is that of caches that connect later.
var Patience = &patience

// Paused reports whether Redis is not asked.
func (c *Cache) Paused() bool { return len(c.paused) > 0 }
