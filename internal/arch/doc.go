// Package arch holds tests of the repository as a whole and, for tests of other packages, Section, which
// keeps the generated pages of docs/reference equal to what the code says. The tests fail when a package imports more of
// this module than its rule allows, when a third party is imported outside the packages that are about it, when a program links what it
// must never hold, when the exported API changes, when a page names what there is not, when a promise
// has no test, and when the image or docker-compose.yml lacks what it needs.
//
// The checks of imports see the import graph, for the platform that they run on. They do not see
// what a package does with what it may import: two packages that never import one another can still
// agree in a table. The rules are in testdata/imports.txt.
//
// No library knows these rules, and the package that reads all others is a part of none.
package arch
