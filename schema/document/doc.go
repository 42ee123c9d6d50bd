// Package document reads YAML and JSON into values that know their position in the file,
// and describes what is wrong with them.
//
// Promises:
//
//   - Each value has the position of its text, and a mapping keeps the order of its fields
//     and repeated fields, so that a message can name the line to correct.
//   - Nesting and aliases are limited, so that a hostile file costs little memory and time.
//   - A message is one line without control characters.
//
// The package knows nothing about images, nodes or settings: package load does.
//
// Reading order:
//
//	value.go            Value, the form of a document in any language, and Path
//	problem.go          Problem, an error or a warning with position, path, message and hint
//	yaml.go, json.go    the parsers
//	suggest.go          "did you mean"
package document
