// Package manifest converts manifests of Longhorn and Kubernetes to the native form of
// the configuration.
//
// Detect finds the kind of a document. A File collects what the manifests of one file
// declare:
//
//   - definitions: a BackingImage, a Node, a Setting, a VolumeSnapshot;
//   - references: a StorageClass or a VolumeSnapshotContent, which names an image and
//     defines it only if nothing else does;
//   - skipped documents, each with the reason.
//
// A VolumeSnapshot needs its class and its claim, which may be in other files, so Resolve
// combines them after all files were read.
//
// The caller validates each document with the CUE definition of its kind (CUE), and then
// calls Kind.Convert. The Conversion remembers where each native value comes from, so
// that a problem that is found later is reported in the words of the manifest.
//
// kind.go has the list of kinds. Each kind has a file of its own, with the functions that
// read and convert it.
package manifest
