// Package hostile generates the files of config directories that should cost much or do harm: by
// depth, number, size, repetition, recursion and evaluation, with bytes that are no text, and by
// changes of valid files. A seed gives the same files each time.
package hostile
