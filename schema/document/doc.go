// Package document reads YAML and JSON into values that know their position in the file,
// and describes what is wrong with them.
//
//   - value.go: Value, the form of every document, whatever language it was written in,
//     and Path, which leads to a value.
//   - yaml.go, json.go: the parsers. They limit nesting and aliases, so that a hostile
//     file costs little.
//   - problem.go: Problem, an error or a warning with position, path, message and hint.
//   - suggest.go: "did you mean".
//
// The package knows nothing about images, nodes or settings: package schema does.
package document
