// Package load loads the configuration of a config directory.
//
// schema.cue defines what may be declared, and manifest.cue (package manifest) the manifests
// of Kubernetes. The rest of the program uses the result: schema.Config and the types below it. A
// Loader does these steps for each snapshot of the directory, and repeats only those whose
// input changed:
//
//	for each file that changed:
//	    parse it into values with positions (YAML and JSON: document; CUE: sandbox)
//	    split it into definitions: one setting, one node, one image each
//	for each definition that changed:
//	    a manifest: validate it with manifest.cue, and convert it to the native form
//	    find unknown, duplicate and missing fields, missing values and missing quotes (structure.go)
//	    validate the rest with CUE (check.go)
//	    convert it to Go, and check what CUE cannot (decode.go, address.go)
//	merge the valid definitions, and the last valid versions of the broken ones (merge.go)
//	validate the merged settings together, which sets the defaults (Loader.settings)
//	define images by references if no other document defines them (merge.go)
//	check definitions against each other: addresses, disks, clones (crosscheck.go, clones.go)
//	compute what is allowed, the digest and the warnings (result.go, warnings.go)
//
// Promises:
//
//  1. The message for a mistake is one line with the position and the path in the user's
//     file. CUE finds the path, and @want in schema.cue has the words of the message.
//  2. A mistake affects one definition. Only a mistake that hides an unknown number of
//     definitions, such as a file that cannot be parsed, affects a file.
//  3. A running manager uses the last valid content of a broken definition. At the start
//     there is none: then the image is not used. If the settings, a node or a whole file
//     is unknown at the start, the manager may only observe.
//  4. While there is any mistake, Result.Digest is empty and nothing may be deleted.
//  5. A document that is skipped never deletes what it declared before: see
//     schema.Undecided.MayDeclare.
//  6. Memory and time are bounded, whatever the files contain (budget.go). A CUE context keeps everything that it
//     evaluated, so each batch of definitions has a context of its own, and no value of CUE outlives it.
//     An evaluation of CUE cannot be interrupted, so the .cue files of a user are evaluated
//     in a child process with limits.
//  7. CUE alone decides what is valid. structure.go only finds mistakes before CUE does, to explain them better.
//  8. No message contains a password or a token: values that may contain one are
//     marked private in schema.cue.
//
// Reading order: package schema has the result. load.go has the steps above, and
// file.go, check.go, decode.go, merge.go and result.go one step each.
package load
