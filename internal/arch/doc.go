// Package arch pins the architecture: its tests fail when a package sees more
// of this module than its room allows, when a third party turns up outside the
// rooms that are about it, when a program links what it must never hold, and
// when a package says nothing about itself.
//
// It promises what the import graph can show, for the platform that it runs
// on. It does not look at what a package does with what it may see: two rooms
// that never import one another can still agree in a table.
//
// The package has no code outside its tests. The map is in map_test.go.
package arch
