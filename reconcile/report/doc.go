// Package report writes plans, comparisons, status documents, image lists and validation
// results for people and for programs: as text, tables, Markdown, JSON and YAML.
//
// Text goes to a terminal or a log. It contains no control characters of other programs,
// and only a caller with a terminal requests colours. Markdown goes into the comment of a
// pull request, and stays below the size limit of such comments. The JSON documents are
// stable interfaces.
//
// Reading order: text.go (tables and words), plan.go (the plan of one node), cluster.go (the
// plan of all nodes, and the difference of two configurations), markdown.go, status.go,
// changes.go (what differs between two status documents), list.go, validation.go.
package report
