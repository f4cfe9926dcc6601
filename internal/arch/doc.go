// Package arch checks the architecture: its tests fail when a package imports more of this
// module than its rule allows, when a package imports an earlier one on the charge's path, when
// a third party is imported outside the packages that are about it, when a
// program links what it must never hold, and when a package does not say what it is.
//
// It checks what the import graph shows, for the platform that it runs on. It does not see
// what a package does with what it may import: two packages that never import one another
// can still agree in a table.
//
// The package has no code outside its tests. The rules are in map_test.go.
package arch
