package schema

import (
	"fmt"
	"path"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// Allowed is what a manager may do under a configuration.
type Allowed uint8

const (
	// ObserveOnly allows no action: at the start, the settings, the nodes or a whole
	// file are unknown.
	ObserveOnly Allowed = iota
	// NoDeletions allows everything but deletions: something is invalid.
	NoDeletions
	// Everything: the configuration is valid.
	Everything
)

// String returns the meaning for a message.
func (a Allowed) String() string {
	return [...]string{"observe only", "no deletions", "everything"}[a]
}

// InvalidImage is an image whose declaration is invalid or is in a file that cannot be read.
type InvalidImage struct {
	Name string
	// Stale is true if Config contains the last valid declaration of the image. Otherwise
	// Config does not contain the image, and no action may create, change or delete its copies.
	Stale bool
	// Reason is the first problem.
	Reason document.Problem
}

// Loaded is a configuration as it was loaded from a config directory, and what a manager may do under it.
type Loaded struct {
	// Config contains the valid declarations, and the last valid ones of those that are
	// broken. When Allowed is ObserveOnly, it is incomplete.
	Config  Config
	Invalid []InvalidImage // sorted by name
	Undecided
	// Digest identifies the configuration, independent of its files. It is "" while
	// anything is invalid.
	Digest string
	// Revision is the commit of the config directory; "": it is not known.
	Revision string
	Allowed  Allowed
}

// Undecided are the documents of a config directory that may be intended to declare an image that
// is not in the configuration, for example a manifest with a typing error. If a document that
// declared an image is skipped, the copies of this image must not be deleted.
type Undecided struct {
	Skipped []Skipped // documents that were not read, in the order of the files
	Emptied []string  // files that contain nothing, not even a comment
}

// MayDeclare returns why an image that is not in the configuration may have lost its declaration
// by mistake. It returns false if the image was removed on purpose. The argument last identifies
// the document that declared the image last. If that document is unknown, last.File is "".
func (u Undecided) MayDeclare(name string, last model.Declaration) (reason string, undecided bool) {
	for _, s := range u.Skipped {
		if s.Image == name {
			return fmt.Sprintf("the %s in %s has the same name and is skipped, because it %s; to delete the image, remove this document, too", s.Kind, s.Position, s.Why), true
		}
	}
	for _, s := range u.Skipped {
		if last.File != "" && s.MayDeclare(last) {
			what := strings.TrimSpace(document.Printable(s.Kind) + " " + s.Name)
			return fmt.Sprintf("%s declared it, and the %s in %s is skipped, because it %s; correct that document, or move it to another file",
				document.Printable(last.File), what, s.Position, s.Why), true
		}
	}
	for _, file := range u.Emptied {
		if last.File != "" && mayHaveDeclared(file, last.File) {
			return fmt.Sprintf("%s declared it and is empty: remove it, or write \"images: {}\" to it", document.Printable(file)), true
		}
	}
	return "", false
}

// mayHaveDeclared reports whether a file that is empty now may have declared an image. The argument
// declaration names the file, or the CUE package as ./folder:package, that declared the image. An
// empty file has lost its package clause, so it may have been part of any package of its folder.
func mayHaveDeclared(file, declaration string) bool {
	inPackage := path.Ext(file) == ".cue" && strings.HasPrefix(declaration, "./"+path.Dir(file)+":")
	return file == declaration || inPackage
}
