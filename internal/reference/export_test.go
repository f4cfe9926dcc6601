package reference

var Replaced = replaced
