package rediscache

// Patience is that of caches that connect later.
var Patience = &patience
